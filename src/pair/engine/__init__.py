"""The engine: immutable shards on a blob store, and the search over them."""

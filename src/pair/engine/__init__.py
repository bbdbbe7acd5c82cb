"""What is stored, and how is it found: immutable shards on a blob store."""

"""The formats of shard files and manifests: writing and reading them."""

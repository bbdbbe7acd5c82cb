"""The manifest and the shards of a KB in the blob store, and the local cache."""

"""The files of a shard and the manifest: how their bytes are written and read."""

"""Writing: documents to chunks, shards and the next manifest."""

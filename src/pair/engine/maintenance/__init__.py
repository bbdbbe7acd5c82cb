"""Compaction, garbage collection, versions, re-embedding, packages and bulk loads."""

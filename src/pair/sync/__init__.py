"""Sync: changes of files, URLs and collections, their summaries, and a readable index."""

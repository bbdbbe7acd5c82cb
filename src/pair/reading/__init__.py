"""Readers: turn the bytes of a file, a page or an upload into text, title and metadata."""

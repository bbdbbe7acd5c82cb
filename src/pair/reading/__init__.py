"""Readers: the bytes of a file, a page or an upload as text, title and metadata, the same for every way in."""

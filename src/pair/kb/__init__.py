"""Composition of all parts: open, fill, search and ask a knowledge base."""

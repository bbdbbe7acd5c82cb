"""Retrieval quality of a knowledge base, measured on judged sets."""

"""Embedders, summarisers, language models and entity extractors."""

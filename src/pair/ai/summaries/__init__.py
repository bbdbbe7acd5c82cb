"""Summaries of sources without a model."""

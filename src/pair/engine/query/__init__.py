"""Searching: candidates, scores and passages."""

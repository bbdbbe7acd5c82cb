"""Blob stores, and leases for writers."""

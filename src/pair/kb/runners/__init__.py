"""Processes and clusters that build the shards of a large load."""

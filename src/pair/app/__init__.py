"""The ways in: command line, and what it prints."""

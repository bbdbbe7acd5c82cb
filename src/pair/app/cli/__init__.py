"""The command line: `entry.py`, and one file for each command group."""

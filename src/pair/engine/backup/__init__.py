"""Export, import, verification and repair."""

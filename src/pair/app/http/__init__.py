"""The HTTP service: `pair serve`. Imported by that command only."""

"""Access to a server: settings, keys, tokens, trust, and the rules."""

"""Who may do what with a server: its settings, keys, tokens, and the rules."""

"""What changed since last time? Files and URLs, their summaries, and a readable index of them."""

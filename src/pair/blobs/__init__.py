"""Where bytes live, and who may write."""

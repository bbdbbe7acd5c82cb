"""Where the stages meet: a knowledge base opened, filled, searched and asked."""

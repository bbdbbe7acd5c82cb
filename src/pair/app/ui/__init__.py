"""The page: index.html, its style sheet and its scripts, served by app/http/app.py."""

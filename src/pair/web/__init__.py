"""Network access: an HTTP client for downloads, and a guarded client for public web pages."""

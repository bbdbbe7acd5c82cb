"""Connectors to the sources of collections: a command, a site, a feed, a bucket."""

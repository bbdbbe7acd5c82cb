"""Sources that are asked for their documents: a command, a site, a feed, a bucket."""

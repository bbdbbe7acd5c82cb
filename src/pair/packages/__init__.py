"""Where does a KB come from? Resolve, download, verify, cache, install, update, package."""

"""Packages of KBs: resolve, download, verify, cache, install, update and package."""

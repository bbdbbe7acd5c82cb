"""The command line, HTTP and MCP servers, and the page."""

"""Ways in: the command line, and later HTTP, MCP, adapters."""

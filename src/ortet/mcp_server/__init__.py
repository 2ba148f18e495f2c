"""The Model Context Protocol server for coding agents."""

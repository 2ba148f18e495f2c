"""The Model Context Protocol: the way in for coding agents."""

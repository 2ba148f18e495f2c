"""The web page of a server."""

"""The store itself over HTTP, for remote hubs."""

"""The HTTP server: every verb of the Python API, live events, and the store itself."""

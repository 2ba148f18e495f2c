"""The HTTP way in: every verb of the Python API, live events, a page, and the store itself."""

"""Portable forms of a session: carry token and checkpoint."""

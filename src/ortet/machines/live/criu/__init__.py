"""Calls of CRIU: dump, restore, and what CRIU cannot do by itself."""

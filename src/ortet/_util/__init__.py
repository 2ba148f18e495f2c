"""Helpers without state that every layer may use: codec, validation, failpoints, deadlines."""

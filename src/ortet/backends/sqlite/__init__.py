"""Catalog on SQLite."""

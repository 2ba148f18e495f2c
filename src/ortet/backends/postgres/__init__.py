"""Catalog and signal on PostgreSQL."""

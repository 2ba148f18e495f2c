"""Audit, erasure, retention, archive and data sets."""

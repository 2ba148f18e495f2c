"""Bundles: commits and objects as one portable file."""

"""Encrypted secrets of a store, and their redaction."""

"""Snapshot of the upper layer of an overlay."""

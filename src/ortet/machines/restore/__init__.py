"""Restore of files: plan, conflict check, and crash-safe writing."""

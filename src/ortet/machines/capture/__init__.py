"""Snapshots of files: scan, ignore rules, stat index, change detection."""

"""Commits, trees, references, and their comparison and merge."""

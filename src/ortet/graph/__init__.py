"""Commits, branches, trees: history and its comparison."""

"""Commit, restore, fork, merge, compare and replay of a session."""

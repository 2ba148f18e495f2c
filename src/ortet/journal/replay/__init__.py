"""Replay of a journal, and comparison of runs."""

"""Swarms: many attempts from one commit, each in a process of its own; the best is kept."""

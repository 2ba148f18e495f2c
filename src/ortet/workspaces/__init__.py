"""Workspaces: a branch of commits with a machine."""

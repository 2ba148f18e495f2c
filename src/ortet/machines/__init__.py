"""Machines: where commands of an agent run, and the files that they change."""

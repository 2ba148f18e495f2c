"""Briefings and portable checkpoints made from the state of a session."""

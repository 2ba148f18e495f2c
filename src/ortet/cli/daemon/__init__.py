"""The resident process that answers commands without a new start."""

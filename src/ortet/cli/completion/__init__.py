"""Shell completion without importing the commands."""

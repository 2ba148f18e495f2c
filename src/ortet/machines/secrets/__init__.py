"""Detection of secrets in variables and files before they are stored."""

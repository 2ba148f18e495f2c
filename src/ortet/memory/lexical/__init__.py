"""Full-text index and search."""

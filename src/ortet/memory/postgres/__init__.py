"""Full-text and vector index in PostgreSQL."""

"""Index of embeddings and search in it."""

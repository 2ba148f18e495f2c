"""The HTTP operations, one module for each noun."""

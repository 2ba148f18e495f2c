"""Sessions that the server holds open, and their hand-over between servers."""

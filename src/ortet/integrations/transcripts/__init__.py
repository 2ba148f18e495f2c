"""Import and export of transcripts of other coding agents."""

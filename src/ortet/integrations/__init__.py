"""Adapters for agent frameworks, importers of transcripts, and trace export."""

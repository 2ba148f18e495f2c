"""Transcripts of other coding agents, taken into sessions."""

"""Tokens, login, and which commits a token may see."""

"""Ortet: git for the whole AI agent."""

from __future__ import annotations

__version__ = "0.1.0"

"""What transcripts of all tools have in common: kinds of records, and numbers that can be spent."""

from __future__ import annotations

import re
from collections.abc import Mapping

_WORD = re.compile(r"[a-z0-9_-]{1,60}\Z")
_MAX_NAME_LENGTH = 100
_MAX_AMOUNT = 1e15


def kind_of(tool: str, word: str) -> str:
    """The kind of record that a line of this type is kept as."""
    return f"{tool}.{word}" if _WORD.match(word) and word != "context" else f"{tool}.line"


def valid_amounts(amounts: Mapping[str, float]) -> dict[str, float]:
    """Those that somebody can have spent."""
    return {
        name: amount
        for name, amount in amounts.items()
        if 0 <= amount < _MAX_AMOUNT and name.isprintable() and 0 < len(name) < _MAX_NAME_LENGTH
    }

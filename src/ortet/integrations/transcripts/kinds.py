"""Record kinds and valid amounts, common to the transcripts of all tools.

This is a module of its own because the readers of all tools share it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_WORD = re.compile(r"[a-z0-9_-]{1,60}\Z")
_MAX_NAME_LENGTH = 100
_MAX_AMOUNT = 1e15


def kind_of(tool: str, word: str) -> str:
    """Return the record kind of a line of this type."""
    return f"{tool}.{word}" if _WORD.match(word) and word != "context" else f"{tool}.line"


def valid_amounts(amounts: Mapping[str, float]) -> dict[str, float]:
    """Return the amounts that are plausible."""
    return {
        name: amount
        for name, amount in amounts.items()
        if 0 <= amount < _MAX_AMOUNT and name.isprintable() and 0 < len(name) < _MAX_NAME_LENGTH
    }

"""Rows that a word index returns, and the numbering of documents by timeline and tier.

This is a module of its own because the contracts and all indexes need it.
"""

from __future__ import annotations

from typing import NamedTuple

from ortet.memory.records import TIERS, Tier

LINES_PER_TIMELINE = 4
"""Lines of a timeline: one for each tier, and one reserve."""
IDS_PER_LINE = 1 << 32
"""Ids of line n are n * IDS_PER_LINE + 1 and up."""

SEQ_BITS = 32
"""Bits of an event number that is packed together with a timeline number."""


class IndexPosition(NamedTuple):
    """A document of a line, or the start of the line, and the number of tokens up to it."""

    id: int
    total: int


class DocumentRow(NamedTuple):
    """A document as the index stores it."""

    id: int
    seq: int
    time: int
    importance: float
    since: int
    until: int
    key: str
    scope: str
    length: int
    words: str
    counts: bytes | None


class FactEndRow(NamedTuple):
    """An event that retracts the fact `key`."""

    key: str
    timeline: int
    seq: int
    time: int


def tier_of(id_: int) -> Tier:
    """Return the tier of a document."""
    return TIERS[(id_ // IDS_PER_LINE) % LINES_PER_TIMELINE]


def pack_timeline_seq(timeline: int, seq: int) -> int:
    """Pack a timeline number and an event number into one integer."""
    return timeline << SEQ_BITS | min(seq, (1 << SEQ_BITS) - 1)

"""Records of the memory index: documents, queries and matches, and rows of the word index.

The documents of a word index are numbered by timeline and tier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec

Tier = Literal["working", "episodic", "semantic"]
TIERS: tuple[Tier, ...] = ("working", "episodic", "semantic")
""""working" are messages, "episodic" are episodes, "semantic" are facts."""

LINES_PER_TIMELINE = 4
"""Lines of a timeline: one for each tier, and one reserve."""
IDS_PER_LINE = 1 << 32
"""Ids of line n are n * IDS_PER_LINE + 1 and up."""

SEQ_BITS = 32
"""Bits of an event number that is packed together with a timeline number."""


class EventSpan(NamedTuple):
    """Events of one timeline with after < seq <= upto, which a search may see."""

    timeline: str
    after: int
    upto: int


EVERYONE = -1


class TimelinePath(NamedTuple):
    """Consecutive spans: a timeline with the timelines that it was forked from, oldest first.

    `scope` is "" for the session itself, or "agent", "user:NAME", "project:NAME". `tiers` limits
    what is found there. Facts retracted there count as retracted in any case. `believer` tells
    paths of different sessions apart: a fact that one retracted may still hold for another. A fact
    retracted for EVERYONE holds for none.
    """

    scope: str
    spans: list[EventSpan]
    tiers: tuple[Tier, ...] = TIERS
    believer: int = 0


class MemoryDocument(msgspec.Struct, frozen=True):
    """One message, fact or episode, at event `seq` of its timeline.

    `key` is the id of the fact or episode. `about` and `speaker` are searched too, and are not part
    of the text. `scope` is set if the document is meant for another scope than that of its
    timeline.
    """

    seq: int
    tier: Tier
    text: str
    time: int
    key: str = ""
    about: str = ""
    speaker: str = ""
    importance: float = 0.5
    since: int = 0  # valid from, in ns; 0: always
    until: int = 0  # valid to, in ns; 0: no end
    scope: str = ""


class FactEnd(msgspec.Struct, frozen=True):
    """Event `seq` retracts the fact `key`: it was forgotten or superseded."""

    seq: int
    key: str
    time: int


class Query(msgspec.Struct, frozen=True):
    """A search.

    `at` limits it to what was recorded up to this time (ns; 0: now). `on` limits facts to those
    valid at this time (0: no limit).
    """

    text: str
    k: int = 10
    tiers: tuple[Tier, ...] = TIERS
    at: int = 0
    on: int = 0
    after: int = 0  # only documents from this time on, in ns
    scope: str | None = None  # only facts of this scope


class Scores(msgspec.Struct, frozen=True):
    """Parts of a score: value and rank (from 1) in each list; 0 means not in the list."""

    bm25: float = 0.0
    bm25_rank: int = 0
    cosine: float = 0.0
    cosine_rank: int = 0
    recency_rank: int = 0
    importance: float = 0.0
    terms: tuple[str, ...] = ()  # query terms that the document or its neighbours contain
    pruned: tuple[str, ...] = ()  # query terms that were too common to search for


class MemoryMatch(msgspec.Struct, frozen=True):
    """A match by its position. The caller reads the text from the journal."""

    timeline: str
    seq: int
    scope: str
    tier: Tier
    key: str
    time: int
    score: float
    scores: Scores


class SearchResult(msgspec.Struct, frozen=True):
    """Result of a search.

    `dense` says how vectors were used: "" (no embedder), "all", "some" (others have no vector yet),
    "late", or "failed: REASON".
    """

    found: list[MemoryMatch]
    dense: str = ""


ReadDocuments = Callable[
    [EventSpan, int], Iterator[tuple[int, list[MemoryDocument], list[FactEnd]]]
]
"""Function that yields pages of a span after an event: (last event, documents, fact ends).

It may be called later, in another thread, for texts without vectors.
"""


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

"""What the index of memories takes and gives: documents at their places in timelines."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

Tier = Literal["working", "episodic", "semantic"]
TIERS: tuple[Tier, ...] = ("working", "episodic", "semantic")
"""What was said, what happened, what is known."""


class EventSpan(NamedTuple):
    """Events of one timeline with after < seq <= upto: what of it can be seen."""

    timeline: str
    after: int
    upto: int


EVERYONE = -1


class TimelinePath(NamedTuple):
    """Spans that follow one another: a timeline with those it began on, the oldest first.

    `scope` is whose it is: "" of the session itself, else "agent", "user:…", "project:…".
    `tiers` are those in which something is to be found there, where not all are: what was given
    up there is given up in any case.
    `believer` is whose it is, where many are asked: what one of them gave up others may believe,
    but what was given up for EVERYONE is.
    """

    scope: str
    spans: list[EventSpan]
    tiers: tuple[Tier, ...] = TIERS
    believer: int = 0


class MemoryDocument(msgspec.Struct, frozen=True):
    """One message, fact or episode, at event `seq` of its timeline. `key` is the fact's or
    episode's id; `about` is found like the text, and is no part of it; `speaker` likewise.
    `scope` is whom it is meant for, where that is not whose line it is on."""

    seq: int
    tier: Tier
    text: str
    time: int
    key: str = ""
    about: str = ""
    speaker: str = ""
    importance: float = 0.5
    since: int = 0  # valid from, ns; 0: always
    until: int = 0  # valid to, ns; 0: still
    scope: str = ""


class FactEnd(msgspec.Struct, frozen=True):
    """Event `seq` says that the fact `key` is believed no longer: forgotten, or superseded."""

    seq: int
    key: str
    time: int


class Query(msgspec.Struct, frozen=True):
    """`at`: what could be known then (ns; 0: now). `on`: what was valid then (0: do not ask)."""

    text: str
    k: int = 10
    tiers: tuple[Tier, ...] = TIERS
    at: int = 0
    on: int = 0
    after: int = 0  # only what happened since, ns
    scope: str | None = None  # only facts that are meant for it


class Scores(msgspec.Struct, frozen=True):
    """Why a memory was found: its rank, from 1, and value in each list it is in; 0: in none."""

    bm25: float = 0.0
    bm25_rank: int = 0
    cosine: float = 0.0
    cosine_rank: int = 0
    recency_rank: int = 0
    importance: float = 0.0
    terms: tuple[str, ...] = ()  # of the query that it has, with its neighbours
    pruned: tuple[str, ...] = ()  # too common to be looked for


class MemoryMatch(msgspec.Struct, frozen=True):
    """A memory by its place; its text is read from the journal by whoever asked."""

    timeline: str
    seq: int
    scope: str
    tier: Tier
    key: str
    time: int
    score: float
    scores: Scores


class SearchResult(msgspec.Struct, frozen=True):
    """`dense` says how meaning took part: "", "all", "some" (others are not embedded yet), or why
    not: "failed: …", "late"."""

    found: list[MemoryMatch]
    dense: str = ""

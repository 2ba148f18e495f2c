"""One run of the memory rows: how much data, how often, and where."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Counts(msgspec.Struct, frozen=True):
    dialogues: int  # of the set that is reported
    memories: int  # that text and vectors are searched in
    fewer: int  # that every peer can hold
    questions: int  # whose time is taken
    facts: int  # of the session that is forked
    forks: int
    learns: int
    starts: int  # of a process


FULL = Counts(
    dialogues=20,
    memories=100_000,
    fewer=10_000,
    questions=200,
    facts=100_000,
    forks=200,
    learns=1000,
    starts=10,
)
QUICK = Counts(
    dialogues=1,
    memories=1500,
    fewer=600,
    questions=10,
    facts=300,
    forks=10,
    learns=30,
    starts=1,
)


class Plan(msgspec.Struct, frozen=True):
    """`python` runs every system, Ortet too; `dense`: it has the embedder; `peers`: and them."""

    place: Path
    counts: Counts
    python: Path
    dense: bool
    peers: bool
    only: frozenset[str] = frozenset()

    def wants(self, *rows: str) -> bool:
        return not self.only or not self.only.isdisjoint(rows)

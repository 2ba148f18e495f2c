"""One run of the rows of the adapters: how often, how long, where."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Counts(msgspec.Struct, frozen=True):
    lengths: tuple[int, ...]  # turns after which a turn is timed, and the agent forked
    square: int  # turns after which those stop whose disk use grows with the square of them
    edge: int  # turns before each length that are timed
    gets: int
    forks: int
    talk: int  # turns of a conversation
    items: int  # in a store
    puts: int
    searches: int


FULL = Counts(
    lengths=(100, 500, 1000, 2000),
    square=500,
    edge=40,
    gets=40,
    forks=20,
    talk=1000,
    items=10_000,
    puts=500,
    searches=40,
)
QUICK = Counts(
    lengths=(4, 6, 8, 10),
    square=6,
    edge=2,
    gets=2,
    forks=2,
    talk=6,
    items=40,
    puts=5,
    searches=2,
)


class Plan(msgspec.Struct, frozen=True):
    """Without `peers` Ortet is measured alone, beside InMemorySaver, which is part of LangGraph."""

    place: Path
    counts: Counts
    only: frozenset[str] = frozenset()
    peers: bool = True
    ours: bool = True

    def wants(self, *rows: str) -> bool:
        return not self.only or not self.only.isdisjoint(rows)

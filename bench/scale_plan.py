"""One run of the rows of a store in servers: how often, how many, where."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Counts(msgspec.Struct, frozen=True):
    turns: int  # of an agent; sizes are taken after all of them
    edge: int  # the last turns, which are timed
    gets: int
    forks: int
    deeds: int  # commits, forks, recalls of a session
    connections: tuple[int, ...]  # that append at the same time
    processes: int  # that the greater ones are spread over
    seconds: float  # of each load
    rounds: int  # of all loads, one after the other
    sessions: int  # in the full store
    events: int  # of each
    opens: int  # of them, timed


FULL = Counts(
    turns=500,
    edge=40,
    gets=40,
    forks=20,
    deeds=40,
    connections=(1, 8, 32),
    processes=4,
    seconds=4.0,
    rounds=3,
    sessions=20_000,
    events=100,
    opens=60,
)
QUICK = Counts(
    turns=4,
    edge=2,
    gets=2,
    forks=2,
    deeds=2,
    connections=(1, 2, 3),
    processes=1,
    seconds=0.2,
    rounds=1,
    sessions=20,
    events=6,
    opens=2,
)


class Plan(msgspec.Struct, frozen=True):
    """`peers` is the Python of their environment; without it Ortet is measured alone."""

    place: Path
    counts: Counts
    only: frozenset[str] = frozenset()
    peers: Path | None = None

    def wants(self, *rows: str) -> bool:
        return not self.only or not self.only.isdisjoint(rows)

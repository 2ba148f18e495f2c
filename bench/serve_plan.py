"""One run of the rows of the server: how often, how many clients, where."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Counts(msgspec.Struct, frozen=True):
    clients: tuple[int, ...]
    middle: int  # of them, for which what the surface adds is asked
    answers: int  # that are timed of all clients together, and at least `least` of each
    least: int
    seconds: float  # after which a load ends in any case
    messages: int  # in each session before
    rate: float  # requests a second of each client that asks now and then
    paced: int  # of those, timed of each
    commits: int  # of the tree that is drawn
    paints: int
    starts: int  # of processes


FULL = Counts(
    clients=(1, 32, 256),
    middle=32,
    answers=2400,
    least=8,
    seconds=3.0,
    messages=100,
    rate=2.0,
    paced=8,
    commits=10_000,
    paints=3,
    starts=5,
)
QUICK = Counts(
    clients=(1, 2, 4),
    middle=2,
    answers=20,
    least=5,
    seconds=30.0,
    messages=5,
    rate=50.0,
    paced=5,
    commits=40,
    paints=1,
    starts=1,
)


class Plan(msgspec.Struct, frozen=True):
    """`browser` is a Chromium; without it the page is not measured."""

    place: Path
    counts: Counts
    only: frozenset[str] = frozenset()
    browser: str | None = None

    def wants(self, *rows: str) -> bool:
        return not self.only or not self.only.isdisjoint(rows)

"""One run of the session rows: how often, where, and what every row needs."""

from __future__ import annotations

from pathlib import Path

import apsw
import msgspec


class Counts(msgspec.Struct, frozen=True):
    appends: int
    group: int
    turns: int  # sizes are taken at half of them too
    edge: int  # the first and last turns that are compared
    events: int  # of the session that is forked and opened
    forks: int
    swarm: int
    attempts: int  # of a swarm that does nothing
    opens: int
    starts: int  # of a process
    steps: int


FULL = Counts(
    appends=3000,
    group=60_000,
    turns=1000,
    edge=100,
    events=10_000,
    forks=300,
    swarm=1000,
    attempts=64,
    opens=40,
    starts=15,
    steps=1000,
)
QUICK = Counts(
    appends=60,
    group=2000,
    turns=20,
    edge=5,
    events=300,
    forks=10,
    swarm=20,
    attempts=2,
    opens=3,
    starts=1,
    steps=20,
)


class Plan(msgspec.Struct, frozen=True):
    """`peers` is the Python of their environment; without it Ortet is measured alone."""

    place: Path
    counts: Counts
    only: frozenset[str] = frozenset()
    peers: Path | None = None

    def wants(self, *rows: str) -> bool:
        return not self.only or not self.only.isdisjoint(rows)


class Bare:
    """What the disk and SQLite cost without us: a table of two columns, one insert, one commit."""

    def __init__(self, file: Path, synchronous: str = "FULL") -> None:
        self._db = apsw.Connection(str(file))
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {synchronous}")
        self._db.execute("CREATE TABLE bare (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def insert(self, body: bytes) -> None:
        self._db.execute("INSERT INTO bare (body) VALUES (?)", (body,))

    def close(self) -> None:
        self._db.close()

"""The catalog rows of a swarm and its attempts, from which another process can continue it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ortet._util.codec import decode, encode
from ortet.backends.base import Catalog, CatalogRow, Lease, RowChange
from ortet.journal.state.merge import Contradiction
from ortet.journal.state.records import Fact
from ortet.sessions.swarm_api import Attempt, AttemptState, SwarmResult, attempt_rows, swarm_rows
from ortet.swarm.plan import SwarmTerms

RUNNING, CHOSEN, KEPT, HARVESTED, FINISHED = "running", "chosen", "kept", "harvested", "finished"
"""The states of a swarm, in order. A swarm enters each state once."""

UNFINISHED: tuple[AttemptState, ...] = ("waiting", "running")


class SwarmRow(msgspec.Struct, frozen=True):
    """A stored swarm. It is encoded as a map, so that later releases can add keys."""

    id: str
    name: str
    point: bytes  # the commit at which all attempts start
    made: int
    terms: SwarmTerms
    state: str = RUNNING
    commands: list[Any] = []  # task and score if they are commands, otherwise None
    kept: list[int] = []
    merged: int = 0  # number of kept attempts already merged
    harvested: list[Fact] = []
    contradictions: list[Contradiction] = []
    conflicts: list[str] = []
    version: int = 0  # version of the catalog row; not stored


class AttemptFork(msgspec.Struct, frozen=True):
    """A session that was forked for one try of an attempt."""

    id: str
    name: str
    branch: str


class AttemptRow(msgspec.Struct, frozen=True):
    """A stored attempt.

    Each try raises the version. A process of an earlier try may still run, but its writes are
    refused.
    """

    i: int
    state: AttemptState = "waiting"
    score: float | None = None
    commit: str = ""
    value: Any = None
    reason: str = ""
    error: str = ""
    seconds: float = 0.0
    tries: int = 0
    mark: str = ""  # identifies the processes of this try
    forks: list[AttemptFork] = []  # the last one belongs to the current try, once it has started
    version: int = 0  # version of the catalog row; not stored

    @property
    def fork(self) -> AttemptFork | None:
        """The fork of the newest try, or None."""
        return self.forks[-1] if self.forks else None


class SwarmRecords:
    """Reads and writes the rows of one swarm."""

    def __init__(self, catalog: Catalog, session: str, id_: str) -> None:
        self._catalog = catalog
        self._swarm_kind = swarm_rows(session)
        self._attempt_kind = attempt_rows(id_)

    # the swarm row

    def swarm_change(self, row: SwarmRow, **fields: Any) -> tuple[SwarmRow, RowChange]:
        """Return the changed row, and the row change that writes it.

        The change fails if another process has written the row since it was read.
        """
        new = replace(row, **fields)
        return new, RowChange(self._swarm_kind, row.name, _encode_row(new), row.version)

    def write_swarm(self, row: SwarmRow, lease: Lease, **fields: Any) -> SwarmRow:
        """Write the changed row under the driver lease, and return it."""
        new, change = self.swarm_change(row, **fields)
        self._catalog.move([], verb="swarm", detail=row.name, lease=lease, rows=[change])
        return self.reload(new)

    def reload(self, row: SwarmRow) -> SwarmRow:
        """Return the current row."""
        stored = self._catalog.row(self._swarm_kind, row.name)
        assert stored is not None
        return _read(stored)

    # the attempt rows

    def attempts(self) -> list[AttemptRow]:
        """Return all attempts, in order."""
        rows: list[AttemptRow] = []
        after = ""
        while page := self._catalog.rows(self._attempt_kind, after):
            rows += [_read_attempt(row) for row in page]
            after = page[-1].key
        return rows

    def attempt(self, i: int) -> AttemptRow:
        """Return the current row of attempt `i`."""
        row = self._catalog.row(self._attempt_kind, _key(i))
        assert row is not None
        return _read_attempt(row)

    def attempt_change(self, row: AttemptRow) -> RowChange:
        """Return the row change for an attempt. It fails with Conflict("row_moved") if outdated."""
        return RowChange(self._attempt_kind, _key(row.i), _encode_row(row), row.version)

    def write_attempt(self, row: AttemptRow) -> AttemptRow:
        """Write an attempt row. Raise Conflict("row_moved") if it is outdated."""
        stored = self._catalog.put_row(
            self._attempt_kind, _key(row.i), _encode_row(row), row.version
        )
        return replace(row, version=stored.version)


def create_swarm(catalog: Catalog, session: str, row: SwarmRow, lease: Lease) -> SwarmRow:
    """Create a swarm with all its attempts in one transaction.

    Raise Conflict("row_moved") if the name is taken.
    """
    attempts = [AttemptRow(i) for i in range(row.terms.n)]
    rows = [RowChange(swarm_rows(session), row.name, _encode_row(row), 0)]
    rows += [RowChange(attempt_rows(row.id), _key(one.i), _encode_row(one), 0) for one in attempts]
    catalog.move([], verb="swarm", detail=row.name, lease=lease, rows=rows)
    return SwarmRecords(catalog, session, row.id).reload(row)


def find_swarm(catalog: Catalog, session: str, name: str) -> SwarmRow | None:
    """Return a swarm of a session by name, or None."""
    row = catalog.row(swarm_rows(session), name)
    return _read(row) if row else None


def list_swarms(catalog: Catalog, session: str) -> Iterator[SwarmRow]:
    """Iterate over the swarms of a session, in name order."""
    after = ""
    while page := catalog.rows(swarm_rows(session), after):
        yield from map(_read, page)
        after = page[-1].key


def swarm_result(row: SwarmRow, attempts: Sequence[AttemptRow], session: str) -> SwarmResult:
    """Return the public result of a swarm."""
    return SwarmResult(
        name=row.name,
        session=session,
        commit=row.point.hex(),
        state=row.state,
        attempts=[_attempt_result(one, kept=one.i in row.kept) for one in attempts],
        kept=list(row.kept),
        harvested=row.harvested,
        contradictions=row.contradictions,
        conflicts=row.conflicts,
    )


def _attempt_result(row: AttemptRow, *, kept: bool) -> Attempt:
    fork = row.fork
    return Attempt(
        i=row.i,
        state=row.state,
        score=row.score,
        session=fork.name if fork else "",
        id=fork.id if fork else "",
        commit=row.commit,
        value=row.value,
        reason=row.reason,
        error=row.error,
        seconds=row.seconds,
        tries=row.tries,
        kept=kept,
    )


def _read(row: CatalogRow) -> SwarmRow:
    return replace(decode(SwarmRow, row.value), version=row.version)


def _read_attempt(row: CatalogRow) -> AttemptRow:
    return replace(decode(AttemptRow, row.value), version=row.version)


def _encode_row(row: SwarmRow | AttemptRow) -> bytes:
    return encode(replace(row, version=0))


def _key(i: int) -> str:
    return f"{i:08d}"

"""What is recorded of a swarm: rows of the catalog, so that another process can go on with it."""

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
"""A swarm goes through these states, and through each once."""

UNFINISHED: tuple[AttemptState, ...] = ("waiting", "running")


class SwarmRow(msgspec.Struct, frozen=True):
    """A swarm. A map, so that later releases may add keys."""

    id: str
    name: str
    point: bytes  # the commit at which all attempts begin
    made: int
    terms: SwarmTerms
    state: str = RUNNING
    commands: list[Any] = []  # task and score, where they are commands: None else
    kept: list[int] = []
    merged: int = 0  # so many of those were merged
    harvested: list[Fact] = []
    contradictions: list[Contradiction] = []
    conflicts: list[str] = []
    version: int = 0  # of the row; not stored


class AttemptFork(msgspec.Struct, frozen=True):
    """A fork that a try was made in."""

    id: str
    name: str
    branch: str


class AttemptRow(msgspec.Struct, frozen=True):
    """An attempt. Each try raises the version, so that a process of an earlier one, which may
    still live, cannot say anything about it any more."""

    i: int
    state: AttemptState = "waiting"
    score: float | None = None
    commit: str = ""
    value: Any = None
    reason: str = ""
    error: str = ""
    seconds: float = 0.0
    tries: int = 0
    mark: str = ""  # that processes of this try carry
    forks: list[AttemptFork] = []  # the last one is that of this try, when it runs or has run
    version: int = 0  # of the row; not stored

    @property
    def fork(self) -> AttemptFork | None:
        return self.forks[-1] if self.forks else None


class SwarmRecords:
    """The rows of one swarm."""

    def __init__(self, catalog: Catalog, session: str, id_: str) -> None:
        self._catalog = catalog
        self._swarm_kind = swarm_rows(session)
        self._attempt_kind = attempt_rows(id_)

    # the swarm

    def swarm_change(self, row: SwarmRow, **fields: Any) -> tuple[SwarmRow, RowChange]:
        """The row with other values, and what writes it if nobody else has meanwhile."""
        new = replace(row, **fields)
        return new, RowChange(self._swarm_kind, row.name, _encode_row(new), row.version)

    def write_swarm(self, row: SwarmRow, lease: Lease, **fields: Any) -> SwarmRow:
        new, change = self.swarm_change(row, **fields)
        self._catalog.move([], verb="swarm", detail=row.name, lease=lease, rows=[change])
        return self.reload(new)

    def reload(self, row: SwarmRow) -> SwarmRow:
        """As it is now."""
        found = self._catalog.row(self._swarm_kind, row.name)
        assert found is not None
        return _read(found)

    # its attempts

    def attempts(self) -> list[AttemptRow]:
        found: list[AttemptRow] = []
        after = ""
        while page := self._catalog.rows(self._attempt_kind, after):
            found += [_read_attempt(row) for row in page]
            after = page[-1].key
        return found

    def attempt(self, i: int) -> AttemptRow:
        row = self._catalog.row(self._attempt_kind, _key(i))
        assert row is not None
        return _read_attempt(row)

    def attempt_change(self, row: AttemptRow) -> RowChange:
        """What writes it if nobody else has since it was read: else Conflict("row_moved")."""
        return RowChange(self._attempt_kind, _key(row.i), _encode_row(row), row.version)

    def write_attempt(self, row: AttemptRow) -> AttemptRow:
        made = self._catalog.put_row(self._attempt_kind, _key(row.i), _encode_row(row), row.version)
        return replace(row, version=made.version)


def create_swarm(catalog: Catalog, session: str, row: SwarmRow, lease: Lease) -> SwarmRow:
    """A swarm with all its attempts, at once; Conflict("row_moved") when the name is taken."""
    attempts = [AttemptRow(i) for i in range(row.terms.n)]
    rows = [RowChange(swarm_rows(session), row.name, _encode_row(row), 0)]
    rows += [RowChange(attempt_rows(row.id), _key(one.i), _encode_row(one), 0) for one in attempts]
    catalog.move([], verb="swarm", detail=row.name, lease=lease, rows=rows)
    return SwarmRecords(catalog, session, row.id).reload(row)


def find_swarm(catalog: Catalog, session: str, name: str) -> SwarmRow | None:
    row = catalog.row(swarm_rows(session), name)
    return _read(row) if row else None


def list_swarms(catalog: Catalog, session: str) -> Iterator[SwarmRow]:
    after = ""
    while page := catalog.rows(swarm_rows(session), after):
        yield from map(_read, page)
        after = page[-1].key


def swarm_result(row: SwarmRow, attempts: Sequence[AttemptRow], session: str) -> SwarmResult:
    """As its caller sees it."""
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

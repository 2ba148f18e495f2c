"""An opened session as the company of its files: sealed with their commit, restored with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ortet.backends.base import Append, Lease, RowChange, Timeline
from ortet.history.records import Journal
from ortet.ids import Oid
from ortet.sessions.actions.asking import asks
from ortet.sessions.history.participants import (
    elsewhere,
    end_going,
    going_on,
    gone,
    put,
    seal,
    set_going,
    start_of,
)
from ortet.sessions.memory.believing import sealed_by
from ortet.sessions.table import Roll, SessionRow
from ortet.sessions.writing.event_writer import Ledger
from ortet.workspaces.commit_participant import Together

if TYPE_CHECKING:
    from ortet.sessions.manager import Sessions


class Host:
    """`row` is the session's; `moved` is called with the new one when it went elsewhere.

    `dirty`: something happened since the last commit that is worth one.
    """

    def __init__(
        self,
        sessions: Sessions,
        row: SessionRow,
        ledger: Ledger,
        *,
        lease: Callable[[], Lease],
        moved: Callable[[SessionRow], None],
        variables: Callable[[], Mapping[str, str | None]],
        dirty: bool,
    ) -> None:
        self.row = row
        self.dirty = dirty
        self._sessions = sessions
        self._ledger = ledger
        self.lease = lease
        self.variables = variables
        self._moved = moved
        self._sealed: Journal | None = None
        self._next: SessionRow | None = None
        self.up_to_date = False  # who leaves goes on to believe what shared memories say now
        self._ahead: tuple[Timeline, Append] | None = None
        self._beside: list[RowChange] = []

    def journal(self, head: bytes) -> bytes:
        self._ledger.flush()
        self._sealed = None
        if not self.dirty and head:
            return head
        ledger = self._ledger
        self._sealed = seal(self._sessions, ledger.line, ledger.mind, ledger.tip)
        return put(self._sessions, self._sealed)

    def memory(self, head: bytes) -> bytes:
        if self._sealed is None:
            return head
        return sealed_by(self._sessions, self.row, self._ledger.mind)

    def unchanged(self, head: Oid, machine: bytes) -> bool:
        """Whether a commit of this mind with this machine would be the head again."""
        if self.dirty:
            return False
        self._ledger.flush()
        state = self._sessions.hub.history.state(head)
        return bool(state.journal) and state.machine == machine

    def recorded(self) -> None:
        if self._sealed is not None:
            self._ledger.line.base, self._sealed = self._sealed, None
            self._ledger.mind.saved()
            self.dirty = False
            self._sessions.scopes.recorded()

    @contextmanager
    def ahead(self, timeline: Timeline, events: Append) -> Iterator[None]:
        """Who leaves in this block goes on with a timeline that has events already: what is known
        only there was made of two."""
        self._ahead = (timeline, events)
        try:
            yield
        finally:
            self._ahead = None

    @contextmanager
    def beside(self, *rows: RowChange) -> Iterator[None]:
        """What is written in the transaction of who leaves in this block: then that was done, and
        is not done again."""
        self._beside = list(rows)
        try:
            yield
        finally:
            self._beside = []

    def going(self, safety: Oid) -> None:
        set_going(self._sessions.hub.catalog, self.row.branch, safety)

    def stayed(self) -> None:
        end_going(self._sessions.hub.catalog, self.row.branch)

    def leaving(self, target: Oid) -> Together:
        self._ledger.flush()
        self._next = elsewhere(self._sessions, self.row, target)
        if self.up_to_date:
            self._next = replace(self._next, beliefs=None)
        if self._ahead is not None:
            timeline, events = self._ahead
            self._next = replace(self._next, timeline=timeline.id)
            rows = [*Roll.moved(self.row, self._next), asks(self.row.id), *self._beside]
            return Together(self.lease(), rows, [timeline], appends=[events])
        return Together(
            self.lease(),
            [
                *going_on(self._sessions, self.row, self._next),
                gone(self.row.branch),
                *self._beside,
            ],
            [start_of(self._sessions, self._next)],
        )

    def arrived(self) -> None:
        if self._next is not None:
            self.row, self._next = self._next, None
            where = self._sessions.standing(self.row)
            self._ledger.go(where.line, where.mind, where.tip)
            self.dirty = False
            self._moved(self.row)

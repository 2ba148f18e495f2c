"""The commit participant of an open session.

The session's events are sealed with each commit of its files, and its state is restored with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ortet.backends.base import Append, Lease, RowChange, Timeline
from ortet.history.records import JournalHead
from ortet.ids import Oid
from ortet.sessions.actions.asking import pending_approval_row
from ortet.sessions.history.participants import (
    clear_restore_pending,
    clear_restore_pending_row,
    mark_restore_pending,
    move_row_changes,
    put_journal,
    row_on_new_timeline,
    seal_events,
    start_of,
)
from ortet.sessions.memory.believing import seal_shared_memory
from ortet.sessions.table import SessionRow, SessionTable
from ortet.sessions.writing.event_writer import EventWriter
from ortet.workspaces.commit_participant import TransactionExtras

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager


class OpenSessionParticipant:
    """Takes part in the commits and restores of the files of an open session.

    `dirty` is True if something worth a commit happened since the last commit. `on_moved` is called
    with the new row after the session has moved to another commit.
    """

    def __init__(
        self,
        sessions: SessionManager,
        row: SessionRow,
        writer: EventWriter,
        *,
        lease: Callable[[], Lease],
        on_moved: Callable[[SessionRow], None],
        variables: Callable[[], Mapping[str, str | None]],
        dirty: bool,
    ) -> None:
        self.row = row
        self.dirty = dirty
        self._sessions = sessions
        self._writer = writer
        self.lease = lease
        self.variables = variables
        self._on_moved = on_moved
        self._sealed_journal: JournalHead | None = None
        self._next_row: SessionRow | None = None
        self.follow_shared_memory = (
            False  # True during merge and adopt: a move keeps following the newest facts
        )
        self._prepared_timeline: tuple[Timeline, Append] | None = None
        self._extra_rows: list[RowChange] = []

    def seal_journal(self, head_journal: bytes) -> bytes:
        self._writer.flush()
        self._sealed_journal = None
        if not self.dirty and head_journal:
            return head_journal
        ledger = self._writer
        self._sealed_journal = seal_events(
            self._sessions, ledger.event_log, ledger.state, ledger.tip
        )
        return put_journal(self._sessions, self._sealed_journal)

    def seal_memory(self, head_memory: bytes) -> bytes:
        if self._sealed_journal is None:
            return head_memory
        return seal_shared_memory(self._sessions, self.row, self._writer.state)

    def is_unchanged(self, head: Oid, machine: bytes) -> bool:
        """Return True if a commit of this state with this machine image would equal the head."""
        if self.dirty:
            return False
        self._writer.flush()
        state = self._sessions.hub.history.state(head)
        return bool(state.journal) and state.machine == machine

    def committed(self) -> None:
        if self._sealed_journal is not None:
            self._writer.event_log.base, self._sealed_journal = self._sealed_journal, None
            self._writer.state.mark_committed()
            self.dirty = False
            self._sessions.scopes.committed()

    @contextmanager
    def with_timeline(self, timeline: Timeline, events: Append) -> Iterator[None]:
        """Within this block, a move switches the session to `timeline`, which already has `events`.

        Merge uses this: its result exists only on the new timeline.
        """
        self._prepared_timeline = (timeline, events)
        try:
            yield
        finally:
            self._prepared_timeline = None

    @contextmanager
    def with_rows(self, *rows: RowChange) -> Iterator[None]:
        """Within this block, write `rows` in the transaction that moves the branch.

        The rows mark an operation as done, so that a retry does not repeat it.
        """
        self._extra_rows = list(rows)
        try:
            yield
        finally:
            self._extra_rows = []

    def begin_restore(self, safety: Oid) -> None:
        mark_restore_pending(self._sessions.hub.catalog, self.row.branch, safety)

    def abort_restore(self) -> None:
        clear_restore_pending(self._sessions.hub.catalog, self.row.branch)

    def prepare_move(self, target: Oid) -> TransactionExtras:
        self._writer.flush()
        self._next_row = row_on_new_timeline(self._sessions, self.row, target)
        if self.follow_shared_memory:
            self._next_row = replace(self._next_row, beliefs=None)
        if self._prepared_timeline is not None:
            timeline, events = self._prepared_timeline
            self._next_row = replace(self._next_row, timeline=timeline.id)
            rows = [
                *SessionTable.move_changes(self.row, self._next_row),
                pending_approval_row(self.row.id),
                *self._extra_rows,
            ]
            return TransactionExtras(self.lease(), rows, [timeline], appends=[events])
        return TransactionExtras(
            self.lease(),
            [
                *move_row_changes(self._sessions, self.row, self._next_row),
                clear_restore_pending_row(self.row.branch),
                *self._extra_rows,
            ],
            [start_of(self._sessions, self._next_row)],
        )

    def finish_move(self) -> None:
        if self._next_row is not None:
            self.row, self._next_row = self._next_row, None
            where = self._sessions.load(self.row)
            self._writer.switch_to(where.line, where.mind, where.tip)
            self.dirty = False
            self._on_moved(self.row)

"""The participants of sessions in the commits and restores of their workspaces.

`OpenSessionParticipant` belongs to a session that this process has open. A session that is not open
here has a `DetachedSessionParticipant`.

Invariant: a row of kind `going` exists while the files have moved and the branch has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from ortet.backends.base import Append, Lease, RowChange, Timeline
from ortet.errors import NotFound, Refused
from ortet.history.records import JournalHead
from ortet.ids import Oid
from ortet.journal.environment import Variable
from ortet.journal.state.records import Effect
from ortet.sessions.actions.approvals import pending_approval_row
from ortet.sessions.environment.environments import recorded_environments
from ortet.sessions.environment.variables import SessionVariables
from ortet.sessions.history.load import (
    LoadedSession,
    is_bookkeeping_event,
    move_row_changes,
    put_journal,
    row_on_new_timeline,
    seal_events,
    start_of,
)
from ortet.sessions.history.restore_report import count_forgotten, unrestorable_since
from ortet.sessions.memory.facts import is_published, seal_shared_memory
from ortet.sessions.table import SessionRow, SessionTable
from ortet.sessions.writing.event_writer import EventWriter
from ortet.sessions.writing.inbox import pending_events
from ortet.store.lease import ClaimingLease, HeldLease
from ortet.workspaces.commit_participant import (
    TransactionExtras,
    clear_restore_pending,
    clear_restore_pending_row,
    mark_restore_pending,
)
from ortet.workspaces.results import UnavailableSecret

if TYPE_CHECKING:
    from ortet.sessions.context import SessionContext, SessionServices


class LeasedInternals(Protocol):
    """The parts of an open session that a participant calls."""

    def drain_inbox(self) -> None: ...

    def publish(self) -> None: ...


class LeasedSession(Protocol):
    """A session that is open for one block."""

    @property
    def internals(self) -> LeasedInternals: ...


class SessionLeases(Protocol):
    """Takes the leases of sessions."""

    services: SessionServices

    def acquire_lease(self, row: SessionRow) -> Lease: ...

    def leased_session(self, row: SessionRow) -> AbstractContextManager[LeasedSession]: ...


class DetachedSessionParticipant:
    """Participant for a session that this process has not opened.

    Its state is committed with the files. A restore moves it too, if no other process holds the
    lease.
    """

    def __init__(self, leases: SessionLeases, row: SessionRow) -> None:
        self._leases = leases
        self._sessions = sessions = leases.services
        self._row = row
        self._held_lease: HeldLease | None = None
        self._next_row: SessionRow | None = None
        self._loaded: LoadedSession | None = None  # loaded for the commit being made
        self._variables = SessionVariables(sessions.store.environ, sessions.store.initial_environ)

    def exclusive(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def seal_journal(self, head_journal: bytes) -> bytes:
        with suppress(NotFound):  # the session may have moved or been removed
            self._row = self._sessions.table.get(self._row.id)
        self._drain_inbox()
        where = self._sessions.load(self._row)
        new = where.line.events(where.line.base.seq)
        self._loaded = None
        if all(is_bookkeeping_event(event) for event in new):
            return head_journal
        self._loaded = where
        return put_journal(
            self._sessions, seal_events(self._sessions, where.line, where.mind, where.tip)
        )

    def seal_memory(self, head_memory: bytes) -> bytes:
        if self._loaded is None:
            return head_memory
        return seal_shared_memory(self._sessions, self._row, self._loaded.mind)

    def committed(self) -> None:
        if self._loaded is not None:
            where, self._loaded = self._loaded, None
            self._sessions.scopes.committed()
            if is_published(self._sessions, self._row, where.line, where.mind, where.tip.seq):
                return
            with suppress(Refused), self._leases.leased_session(self._row) as session:
                session.internals.publish()  # if another process writes, that process publishes
                self._row = self._sessions.table.get(self._row.id)

    def _drain_inbox(self) -> None:
        """Append inbox entries to this commit, unless another process holds the lease."""
        if next(pending_events(self._sessions.store.catalog, self._row.id), None) is not None:
            with suppress(Refused), self._leases.leased_session(self._row) as session:
                session.internals.drain_inbox()

    def begin_restore(self, safety: Oid) -> None:
        mark_restore_pending(self._sessions.store.catalog, self._row.branch, safety)

    def abort_restore(self) -> None:
        clear_restore_pending(self._sessions.store.catalog, self._row.branch)

    def prepare_move(self, target: Oid) -> TransactionExtras:
        store = self._sessions.store
        with ClaimingLease():
            lease = self._leases.acquire_lease(self._row)
            self._held_lease = HeldLease(store.catalog, store.clock, lease)
        self._row = self._sessions.table.get(self._row.id)
        self._next_row = row_on_new_timeline(self._sessions, self._row, target)
        return TransactionExtras(
            lease,
            [
                *move_row_changes(self._sessions, self._row, self._next_row, target),
                clear_restore_pending_row(self._row.branch),
            ],
            [start_of(self._sessions, self._next_row)],
        )

    def finish_move(self) -> None:
        if self._held_lease is not None and self._next_row is not None:
            self._row, self._next_row = self._next_row, None
            self._held_lease.release()
            self._variables.mark_restored(self._recorded_variables())

    def lease(self) -> Lease | None:
        return None

    def variables(self) -> Mapping[str, str | None]:
        return self._variables.overrides(self._recorded_variables() or {})

    def unrestorable_since(self, commit: Oid) -> tuple[list[Effect], list[UnavailableSecret]]:
        return unrestorable_since(self._sessions, self._row, commit)

    def count_forgotten(self, commit: Oid, since: Oid | None = None) -> int:
        return count_forgotten(self._sessions, self._row, commit, since)

    def _recorded_variables(self) -> Mapping[str, Variable] | None:
        """Return the variables that the session has recorded now, by any writer."""
        with suppress(NotFound):  # the session was removed concurrently
            known = recorded_environments(self._sessions.read(self._row.id))[1]
            return known.variables if known is not None else None
        return None


# The commit participant of an open session.
#
# The session's events are sealed with each commit of its files, and its state is restored with
# them.


class OpenSessionParticipant:
    """Takes part in the commits and restores of the files of an open session.

    `on_moved` is called after the session has moved to another commit.
    """

    def __init__(
        self,
        context: SessionContext,
        writer: EventWriter,
        *,
        lease: Callable[[], Lease],
        on_moved: Callable[[], None],
        variables: Callable[[], Mapping[str, str | None]],
    ) -> None:
        self._context = context
        self._sessions = context.services
        self._writer = writer
        self.lease = lease
        self.variables = variables
        self.on_moved = on_moved
        self._sealed_journal: JournalHead | None = None
        self._next_row: SessionRow | None = None
        self.follow_shared_memory = (
            False  # True during merge and adopt: a move keeps following the newest facts
        )
        self._prepared_timeline: tuple[Timeline, Append] | None = None
        self._added_ledgers: list[str] = []
        self._extra_rows: list[RowChange] = []

    def reset(self) -> None:
        """Forget the commit or move that was being made when a verb was interrupted."""
        self._sealed_journal, self._next_row, self._prepared_timeline = None, None, None
        self._added_ledgers, self._extra_rows = [], []
        self.follow_shared_memory = False

    def exclusive(self) -> AbstractContextManager[Any]:
        return self._writer.exclusive()

    def seal_journal(self, head_journal: bytes) -> bytes:
        self._writer.flush()
        self._sealed_journal = None
        if not self._context.dirty and head_journal:
            return head_journal
        ledger = self._writer
        self._sealed_journal = seal_events(
            self._sessions, ledger.event_log, ledger.state, ledger.tip
        )
        return put_journal(self._sessions, self._sealed_journal)

    def seal_memory(self, head_memory: bytes) -> bytes:
        if self._sealed_journal is None:
            return head_memory
        return seal_shared_memory(self._sessions, self._context.row, self._writer.state)

    def is_unchanged(self, head: Oid, machine: bytes) -> bool:
        """Return True if a commit of this state with this machine image would equal the head."""
        if self._context.dirty:
            return False
        self._writer.flush()
        state = self._sessions.store.history.state(head)
        return bool(state.journal) and state.machine == machine

    def committed(self) -> None:
        if self._sealed_journal is not None:
            self._writer.event_log.base, self._sealed_journal = self._sealed_journal, None
            self._writer.state.mark_committed()
            self._context.dirty = False
            self._sessions.scopes.committed()

    @contextmanager
    def with_timeline(
        self, timeline: Timeline, events: Append, ledgers: Sequence[str] = ()
    ) -> Iterator[None]:
        """Within this block, a move switches the session to `timeline`, which already has `events`.

        Merge uses this: its result exists only on the new timeline. The session then also knows the
        effects in `ledgers`.
        """
        self._prepared_timeline, self._added_ledgers = (timeline, events), list(ledgers)
        try:
            yield
        finally:
            self._prepared_timeline, self._added_ledgers = None, []

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
        mark_restore_pending(self._sessions.store.catalog, self._context.row.branch, safety)

    def abort_restore(self) -> None:
        clear_restore_pending(self._sessions.store.catalog, self._context.row.branch)

    def prepare_move(self, target: Oid) -> TransactionExtras:
        self._writer.flush()
        self._next_row = row_on_new_timeline(self._sessions, self._context.row, target)
        if self.follow_shared_memory:
            self._next_row = replace(self._next_row, beliefs=None)
        if self._prepared_timeline is not None:
            timeline, events = self._prepared_timeline
            ledgers = dict.fromkeys([*self._next_row.ledgers, *self._added_ledgers])
            self._next_row = replace(self._next_row, timeline=timeline.id, ledgers=list(ledgers))
            rows = [
                *SessionTable.move_changes(self._context.row, self._next_row),
                pending_approval_row(self._context.row.id),
                *self._extra_rows,
            ]
            return TransactionExtras(self.lease(), rows, [timeline], appends=[events])
        return TransactionExtras(
            self.lease(),
            [
                *move_row_changes(self._sessions, self._context.row, self._next_row, target),
                clear_restore_pending_row(self._context.row.branch),
                *self._extra_rows,
            ],
            [start_of(self._sessions, self._next_row)],
        )

    def finish_move(self) -> None:
        if self._next_row is not None:
            row, self._next_row = self._next_row, None
            self._context.set_row(row)
            where = self._sessions.load(row)
            self._writer.switch_to(where.line, where.mind, where.tip)
            self._context.dirty = False
            self.on_moved()

    def unrestorable_since(self, commit: Oid) -> tuple[list[Effect], list[UnavailableSecret]]:
        return unrestorable_since(self._sessions, self._context.row, commit)

    def count_forgotten(self, commit: Oid, since: Oid | None = None) -> int:
        return count_forgotten(self._sessions, self._context.row, commit, since)

"""Loading and sealing of session state, and the participant of sessions that are not open.

`load_session` builds the in-memory state of a session: the sealed journal of its head, then the
events after it. `seal_events` stores new events for a commit. A session that moves to another
commit continues on a new timeline; `row_on_new_timeline` and `start_of` describe that timeline.

Invariant: a row of kind `going` exists while the files have moved and the branch has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ortet._util.codec import StoredRecord, decode, encode
from ortet._util.failpoints import failpoint
from ortet.backends.base import Append, Catalog, Lease, RowChange, Timeline
from ortet.errors import NotFound, Refused
from ortet.history.records import Fold, JournalHead, State
from ortet.ids import Oid
from ortet.journal.environment import Variable
from ortet.journal.event_log import EMPTY_JOURNAL, EventLog
from ortet.journal.events import Event, Tip
from ortet.journal.state.reducers import fold
from ortet.journal.state.state import SessionState
from ortet.objects.base import Kind
from ortet.sessions.actions.approvals import inherited_approval_rows, pending_approval_row
from ortet.sessions.environment.environments import recorded_environments
from ortet.sessions.environment.variables import SessionVariables
from ortet.sessions.memory.facts import is_published, seal_shared_memory
from ortet.sessions.table import SessionRow, SessionTable
from ortet.sessions.writing.event_writer import EventWriter
from ortet.sessions.writing.inbox import pending_events
from ortet.sessions.writing.state_cache import MIN_EVENTS, cache_state, epoch_of, load_cached
from ortet.workspaces.commit_participant import TransactionExtras

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager


_PENDING_RESTORE = "going"
"""Row kind of the pending-restore record: files have moved, the branch has not yet."""


def is_bookkeeping_event(event: Event) -> bool:
    """Return True if an event alone is no reason for a commit.

    These are lifecycle events, and environment events that were recorded automatically.
    """
    return event.kind == "lifecycle" or (
        event.kind == "environment" and not event.data.get("asked")
    )


_FIRST_PAGE = 16

_TIMELINE_CACHE_SIZE = 1000
"""Number of segments whose timeline is cached."""


class LoadedSession(msgspec.Struct, frozen=True):
    """A loaded session: its event log, its state and the machine image of its head."""

    line: EventLog
    mind: SessionState
    tip: Tip
    machine: bytes
    epoch: int = -1  # sweep epoch from before the load, see writing/state_cache


def sealed_journal(
    sessions: SessionManager, row: SessionRow, head: Oid | None
) -> tuple[JournalHead, bytes]:
    """Return the sealed journal of a session and the machine image of its head.

    The journal is that of the head commit if it was made on this timeline. Otherwise it is the
    journal that the timeline started with.
    """
    objects = sessions.hub.objects
    began = decode(JournalHead, objects.get(Oid(row.sealed))) if row.sealed else EMPTY_JOURNAL
    if head is None:
        return began, b""
    state = sessions.hub.history.state(head)
    if state.journal and state.journal != row.sealed:
        journal = decode(JournalHead, objects.get(Oid(state.journal)))
        if _is_on(sessions, row.timeline, journal):
            return journal, state.machine
    return began, state.machine


class ForkPointCache(msgspec.Struct, frozen=True):
    """Journal and decoded fold of the commit where new timelines start."""

    oid: bytes
    heir: bytes  # id of the stored fold; erasure replaces it
    journal: JournalHead
    fold: Fold | None


def load_fork_point(sessions: SessionManager, oid: bytes) -> ForkPointCache:
    """Return the fork point, cached: a swarm starts many sessions at the same commit."""
    objects, known, journal = (
        sessions.hub.objects,
        sessions.fork_point_cache,
        _journal(sessions, oid),
    )
    heir = objects.replacement_of(Oid(journal.fold)) if journal.fold else b""
    if known is None or known.oid != oid or known.heir != heir:
        fold = decode(Fold, objects.get(Oid(heir))) if heir else None
        known = sessions.fork_point_cache = ForkPointCache(oid, heir, journal, fold)
    return known


def _journal(sessions: SessionManager, oid: bytes) -> JournalHead:
    if sessions.fork_point_cache is not None and sessions.fork_point_cache.oid == oid:
        return sessions.fork_point_cache.journal
    return decode(JournalHead, sessions.hub.objects.get(Oid(oid))) if oid else EMPTY_JOURNAL


def load_fresh_fork(
    sessions: SessionManager, row: SessionRow, fork_point: ForkPointCache, machine: bytes
) -> LoadedSession:
    """Build the in-memory state of a session whose timeline has no events of its own.

    The state is a private copy.
    """
    hub, journal = sessions.hub, fork_point.journal
    line = EventLog(hub.catalog, hub.objects, sessions.chain, timeline=row.timeline, base=journal)
    tip = Tip(journal.seq, journal.hash, 0)
    epoch = (
        hub.objects.sweep_lock.epoch() if hub.cache.shared else -1
    )  # the epoch known here; it is fetched when the state is cached
    return LoadedSession(line, SessionState(sessions.maps, fork_point.fold), tip, machine, epoch)


def load_event_log(sessions: SessionManager, row: SessionRow) -> tuple[EventLog, bytes]:
    """Return the event log of a session and the machine image of its head."""
    hub = sessions.hub
    found = hub.catalog.head(f"branch:{row.branch}")
    journal, machine = sealed_journal(sessions, row, found.oid if found else None)
    line = EventLog(hub.catalog, hub.objects, sessions.chain, timeline=row.timeline, base=journal)
    return line, machine


def load_session(sessions: SessionManager, row: SessionRow) -> LoadedSession:
    """Load the present state of a session, from the cache if possible."""
    hub, epoch = sessions.hub, epoch_of(sessions)
    line, machine = load_event_log(sessions, row)
    journal = line.base
    mind = SessionState.load(sessions.maps, hub.objects, journal.fold)
    kept = load_cached(sessions, line, mind, epoch)
    tip = begun = kept or Tip(journal.seq, journal.hash, 0)
    for event in line.events(tip.seq):
        fold(mind, [event])
        tip = Tip(event.seq, event.hash, event.time)
    if tip.seq - begun.seq >= MIN_EVENTS:
        cache_state(sessions, line, mind, tip, epoch=epoch)
    return LoadedSession(line, mind, tip, machine, epoch)


def uncommitted_events(event_log: EventLog) -> Iterator[Event]:
    """Iterate over the events that no commit holds yet.

    The first page is small, for callers that only test if there is an event.
    """
    base = event_log.base.seq
    return chain(event_log.events(base, base + _FIRST_PAGE), event_log.events(base + _FIRST_PAGE))


def seal_events(
    sessions: SessionManager, event_log: EventLog, state: SessionState, tip: Tip
) -> JournalHead:
    """Store the events that are not sealed yet and return the new journal."""
    failpoint("journal.before-seal")
    segment = event_log.seal(tip)  # raises if an event must not be stored
    return JournalHead(segment, tip.seq, tip.hash, state.save(sessions.hub.objects))


def put_journal(sessions: SessionManager, journal: JournalHead) -> Oid:
    return sessions.hub.objects.put(Kind.JOURNAL, encode(journal))


def row_on_new_timeline(sessions: SessionManager, row: SessionRow, target: Oid) -> SessionRow:
    """Return the session row on a new timeline that starts at the commit `target`."""
    objects = sessions.hub.objects
    state = decode(State, objects.get(sessions.hub.history.read(target).state))
    return msgspec.structs.replace(
        row, timeline=sessions.new_id(), sealed=state.journal, beliefs=state.memory
    )


def move_row_changes(sessions: SessionManager, old: SessionRow, new: SessionRow) -> list[RowChange]:
    """Return the row changes that move a session to `new`, with its inherited approvals."""
    return [
        *SessionTable.move_changes(old, new),
        *inherited_approval_rows([new], load_fork_point(sessions, new.sealed).fold),
    ]


def start_of(sessions: SessionManager, row: SessionRow, here: str = "") -> Timeline:
    """Return the timeline of a new row, which starts behind the journal in `row.sealed`.

    Args:
        here: id of a timeline that certainly exists in this catalog, to save a lookup.
    """
    if not row.sealed:
        return Timeline(row.timeline)
    journal = _journal(sessions, row.sealed)
    parent = _timeline(sessions, journal) if journal.segment else ""
    if parent not in ("", here) and sessions.hub.catalog.timeline(parent) is None:
        parent = ""  # timeline of another host; its events are in the commit
    return Timeline(row.timeline, parent, journal.seq)


class _SegmentStart(StoredRecord, frozen=True):
    """First field of a Segment. The event headers that follow are not decoded."""

    timeline: bytes


def _is_on(sessions: SessionManager, timeline: str, journal: JournalHead) -> bool:
    """Return True if a journal ends on this timeline.

    The event row on the timeline is checked first: a segment holds the headers of all its events
    and is slow to read.
    """
    if not journal.segment:
        return False
    rows = sessions.hub.catalog.events(timeline, journal.seq - 1, 1)
    if rows and sessions.hub.objects.hasher.oid(rows[0].head) == journal.hash:
        return True
    return _timeline(sessions, journal) == timeline


def _timeline(sessions: SessionManager, journal: JournalHead) -> str:
    known = sessions.timelines.get(journal.segment)
    if known is None:
        objects = sessions.hub.objects
        if len(sessions.timelines) >= _TIMELINE_CACHE_SIZE:
            sessions.timelines.clear()
        start = decode(_SegmentStart, objects.get(objects.replacement_of(Oid(journal.segment))))
        known = sessions.timelines[journal.segment] = start.timeline.hex()
    return known


def pending_restore(catalog: Catalog, branch: str) -> Oid | None:
    """Return the commit recorded before an interrupted restore, or None.

    If present, the workspace files must be restored to it.
    """
    row = catalog.row(_PENDING_RESTORE, branch)
    return Oid(row.value) if row else None


def mark_restore_pending(catalog: Catalog, branch: str, safety: Oid) -> None:
    catalog.put_row(_PENDING_RESTORE, branch, safety)
    failpoint("restore.going")


def clear_restore_pending(catalog: Catalog, branch: str) -> None:
    catalog.drop_row(_PENDING_RESTORE, branch)


def clear_restore_pending_row(branch: str) -> RowChange:
    """Return the row change that clears the pending-restore record, for the branch transaction."""
    return RowChange(_PENDING_RESTORE, branch, None)


class DetachedSessionParticipant:
    """Participant for a session that this process has not opened.

    Its state is committed with the files. A restore moves it too, if no other process holds the
    lease.
    """

    def __init__(self, sessions: SessionManager, row: SessionRow) -> None:
        self._sessions = sessions
        self._row = row
        self._lease: Lease | None = None
        self._next_row: SessionRow | None = None
        self._loaded: LoadedSession | None = None  # loaded for the commit being made
        self._variables = SessionVariables(sessions.hub.environ, sessions.hub.initial_environ)

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
            with suppress(Refused), self._sessions.leased_session(self._row) as session:
                session._publish()  # if another process writes, that process publishes
                self._row = session.row

    def _drain_inbox(self) -> None:
        """Append inbox entries to this commit, unless another process holds the lease."""
        if next(pending_events(self._sessions.hub.catalog, self._row.id), None) is not None:
            with suppress(Refused), self._sessions.leased_session(self._row) as session:
                session.drain_inbox()

    def begin_restore(self, safety: Oid) -> None:
        mark_restore_pending(self._sessions.hub.catalog, self._row.branch, safety)

    def abort_restore(self) -> None:
        clear_restore_pending(self._sessions.hub.catalog, self._row.branch)

    def prepare_move(self, target: Oid) -> TransactionExtras:
        self._lease = self._sessions.acquire_lease(self._row)
        self._row = self._sessions.table.get(self._row.id)
        self._next_row = row_on_new_timeline(self._sessions, self._row, target)
        return TransactionExtras(
            self._lease,
            [
                *move_row_changes(self._sessions, self._row, self._next_row),
                clear_restore_pending_row(self._row.branch),
            ],
            [start_of(self._sessions, self._next_row)],
        )

    def finish_move(self) -> None:
        if self._lease is not None and self._next_row is not None:
            self._row, self._next_row = self._next_row, None
            self._sessions.hub.catalog.release(self._lease)
            self._variables.mark_restored(self._recorded_variables())

    def lease(self) -> Lease | None:
        return None

    def variables(self) -> Mapping[str, str | None]:
        return self._variables.overrides(self._recorded_variables() or {})

    def _recorded_variables(self) -> Mapping[str, Variable] | None:
        """Return the variables that the session has recorded now, by any writer."""
        with suppress(NotFound):  # the session was removed concurrently
            known = recorded_environments(self._sessions.get(self._row.id))[1]
            return known.variables if known is not None else None
        return None


# The commit participant of an open session.
#
# The session's events are sealed with each commit of its files, and its state is restored with
# them.


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

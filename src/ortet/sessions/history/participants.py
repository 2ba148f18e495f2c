"""The mind that goes with a branch: what it adds to a commit, how it goes where the files go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import StoredRecord, decode, encode
from ortet._util.failpoints import failpoint
from ortet.backends.base import Catalog, Lease, RowChange, Timeline
from ortet.errors import NotFound, Refused
from ortet.history.records import Fold, JournalHead, State
from ortet.ids import Oid
from ortet.journal.environment import Variable
from ortet.journal.event_log import EMPTY_JOURNAL, EventLog
from ortet.journal.events import Event, Tip
from ortet.journal.state.reducers import fold
from ortet.journal.state.state import SessionState
from ortet.objects.base import Kind
from ortet.sessions.actions.asking import inherited_approval_rows
from ortet.sessions.environment.environments import recorded_environments
from ortet.sessions.environment.variables import SessionVariables
from ortet.sessions.memory.believing import is_published, seal_shared_memory
from ortet.sessions.table import SessionRow, SessionTable
from ortet.sessions.writing.inbox import pending_events
from ortet.sessions.writing.state_cache import MIN_EVENTS, cache_state, epoch_of, load_cached
from ortet.workspaces.commit_participant import TransactionExtras

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager

_PENDING_RESTORE = "going"
"""Rows of this kind are there while files move without their branch."""


def is_bookkeeping_event(event: Event) -> bool:
    """Whether an event alone is no reason for a commit: it was opened or let go, or its
    surroundings were looked at although nobody asked."""
    return event.kind == "lifecycle" or (
        event.kind == "environment" and not event.data.get("asked")
    )


_FIRST_PAGE = 16

_TIMELINE_CACHE_SIZE = 1000
"""Segments whose timeline is remembered."""


class LoadedSession(msgspec.Struct, frozen=True):
    """Where a session is: its events so far, what they add up to, and the files of its head."""

    line: EventLog
    mind: SessionState
    tip: Tip
    machine: bytes
    epoch: int = -1  # of before it was read, see session/hotfold


def sealed_journal(
    sessions: SessionManager, row: SessionRow, head: Oid | None
) -> tuple[JournalHead, bytes]:
    """What commits hold of a session's line, and the files of its head.

    The head's journal, if that was made on this timeline; else the one the timeline began with.
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
    """What timelines begin with that start at one commit: its journal, and the fold read."""

    oid: bytes
    heir: bytes  # of the fold: erasure puts another in its place
    journal: JournalHead
    fold: Fold | None


def load_fork_point(sessions: SessionManager, oid: bytes) -> ForkPointCache:
    """The last one is remembered: a swarm starts many times at the same commit."""
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
    """Where a session is on whose timeline nothing happened yet; its mind is its own."""
    hub, journal = sessions.hub, fork_point.journal
    line = EventLog(hub.catalog, hub.objects, sessions.chain, timeline=row.timeline, base=journal)
    tip = Tip(journal.seq, journal.hash, 0)
    epoch = (
        hub.objects.sweep_lock.epoch() if hub.cache.shared else -1
    )  # heard: asked when it is kept
    return LoadedSession(line, SessionState(sessions.maps, fork_point.fold), tip, machine, epoch)


def load_event_log(sessions: SessionManager, row: SessionRow) -> tuple[EventLog, bytes]:
    """The events of a session so far, and the files of its head."""
    hub = sessions.hub
    found = hub.catalog.head(f"branch:{row.branch}")
    journal, machine = sealed_journal(sessions, row, found.oid if found else None)
    line = EventLog(hub.catalog, hub.objects, sessions.chain, timeline=row.timeline, base=journal)
    return line, machine


def load_session(sessions: SessionManager, row: SessionRow) -> LoadedSession:
    """Where a session is now."""
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
    """What no commit holds yet. Who only looks whether there is something reads a few of them."""
    base = event_log.base.seq
    return chain(event_log.events(base, base + _FIRST_PAGE), event_log.events(base + _FIRST_PAGE))


def seal_events(
    sessions: SessionManager, event_log: EventLog, state: SessionState, tip: Tip
) -> JournalHead:
    """Put what is not sealed yet into the store."""
    failpoint("journal.before-seal")
    segment = event_log.seal(tip)  # which refuses what must not be stored
    return JournalHead(segment, tip.seq, tip.hash, state.save(sessions.hub.objects))


def put_journal(sessions: SessionManager, journal: JournalHead) -> Oid:
    return sessions.hub.objects.put(Kind.JOURNAL, encode(journal))


def row_on_new_timeline(sessions: SessionManager, row: SessionRow, target: Oid) -> SessionRow:
    """The same session on a new timeline, which begins where `target` was committed."""
    objects = sessions.hub.objects
    state = decode(State, objects.get(sessions.hub.history.read(target).state))
    return msgspec.structs.replace(
        row, timeline=sessions.new_id(), sealed=state.journal, beliefs=state.memory
    )


def move_row_changes(sessions: SessionManager, old: SessionRow, new: SessionRow) -> list[RowChange]:
    """What says that a session is there from now on, and what it may ask for there."""
    return [
        *SessionTable.move_changes(old, new),
        *inherited_approval_rows([new], load_fork_point(sessions, new.sealed).fold),
    ]


def start_of(sessions: SessionManager, row: SessionRow, here: str = "") -> Timeline:
    """The timeline of a row that is new: behind what its `sealed` holds. `here`: one that is sure
    to be in this catalog."""
    if not row.sealed:
        return Timeline(row.timeline)
    journal = _journal(sessions, row.sealed)
    parent = _timeline(sessions, journal) if journal.segment else ""
    if parent not in ("", here) and sessions.hub.catalog.timeline(parent) is None:
        parent = ""  # another host's: its events are in the commit
    return Timeline(row.timeline, parent, journal.seq)


class _SegmentStart(StoredRecord, frozen=True):
    """What a Segment begins with: the rest, every header of it, is not looked at."""

    timeline: bytes


def _is_on(sessions: SessionManager, timeline: str, journal: JournalHead) -> bool:
    """Whether a journal ends on this timeline. Its row there says so without a look at the segment,
    which holds a header of every event it seals."""
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
    """The commit whose files have to come back: a process was killed when it moved them."""
    row = catalog.row(_PENDING_RESTORE, branch)
    return Oid(row.value) if row else None


def mark_restore_pending(catalog: Catalog, branch: str, safety: Oid) -> None:
    catalog.put_row(_PENDING_RESTORE, branch, safety)
    failpoint("restore.going")


def clear_restore_pending(catalog: Catalog, branch: str) -> None:
    catalog.drop_row(_PENDING_RESTORE, branch)


def clear_restore_pending_row(branch: str) -> RowChange:
    """The same, for the transaction that moves the branch."""
    return RowChange(_PENDING_RESTORE, branch, None)


class DetachedSessionParticipant:
    """The session of a directory that this process has not opened: its mind is committed with the
    files, and goes with them when nobody else is at work."""

    def __init__(self, sessions: SessionManager, row: SessionRow) -> None:
        self._sessions = sessions
        self._row = row
        self._lease: Lease | None = None
        self._next_row: SessionRow | None = None
        self._loaded: LoadedSession | None = None  # of the commit that is being made
        self._variables = SessionVariables(sessions.hub.environ, sessions.hub.initial_environ)

    def seal_journal(self, head_journal: bytes) -> bytes:
        with suppress(NotFound):  # it may have gone elsewhere, or be no more
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
                session._publish()  # unless someone else writes, and tells it then
                self._row = session.row

    def _drain_inbox(self) -> None:
        """What people left for the session belongs to this commit, unless someone else writes."""
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
        """As its session knows them now, whoever writes to it."""
        with suppress(NotFound):  # it was removed meanwhile
            known = recorded_environments(self._sessions.get(self._row.id))[1]
            return known.variables if known is not None else None
        return None

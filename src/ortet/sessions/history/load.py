"""Loading and sealing of session state.

`load_session` builds the in-memory state of a session: the sealed journal of its head, then the
events after it. `seal_events` stores new events for a commit. A session that moves to another
commit continues on a new timeline; `row_on_new_timeline` and `start_of` describe that timeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import msgspec

from ortet._util.codec import StoredRecord, decode, encode
from ortet._util.failpoints import failpoint
from ortet.backends.base import RowChange, Timeline
from ortet.history.records import Fold, JournalHead, State
from ortet.ids import Oid
from ortet.journal.event_log import EMPTY_JOURNAL, EventLog
from ortet.journal.events import Event, Tip
from ortet.journal.kinds.registry import fold, kind_of
from ortet.journal.segments import iter_segments
from ortet.journal.state.state import SessionState
from ortet.objects.base import Kind
from ortet.sessions.actions.approvals import inherited_approval_rows
from ortet.sessions.actions.effect_recovery import arriving_rows
from ortet.sessions.actions.ledger import ledger_of, ledgers_of, root_timeline
from ortet.sessions.services import ForkPointCache, JournalServices
from ortet.sessions.table import SessionRow, SessionTable
from ortet.sessions.writing.state_cache import MIN_EVENTS, cache_state, epoch_of, load_cached


def is_bookkeeping_event(event: Event) -> bool:
    """Return True if an event alone is no reason for a commit.

    These are lifecycle events, and environment events that were recorded automatically.
    """
    return kind_of(event.kind).bookkeeping(event.data)


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
    sessions: JournalServices, row: SessionRow, head: Oid | None
) -> tuple[JournalHead, bytes]:
    """Return the sealed journal of a session and the machine image of its head.

    The journal is that of the head commit if it was made on this timeline. Otherwise it is the
    journal that the timeline started with.
    """
    objects = sessions.store.objects
    began = decode(JournalHead, objects.get(Oid(row.sealed))) if row.sealed else EMPTY_JOURNAL
    if head is None:
        return began, b""
    state = sessions.store.history.state(head)
    if state.journal and state.journal != row.sealed:
        journal = decode(JournalHead, objects.get(Oid(state.journal)))
        if _is_on(sessions, row.timeline, journal):
            return journal, state.machine
    return began, state.machine


def load_fork_point(sessions: JournalServices, oid: bytes) -> ForkPointCache:
    """Return the fork point, cached: a swarm starts many sessions at the same commit."""
    objects, known, journal = (
        sessions.store.objects,
        sessions.fork_point_cache,
        _journal(sessions, oid),
    )
    heir = objects.replacement_of(Oid(journal.fold)) if journal.fold else b""
    if known is None or known.oid != oid or known.heir != heir:
        fold = decode(Fold, objects.get(Oid(heir))) if heir else None
        known = sessions.fork_point_cache = ForkPointCache(oid, heir, journal, fold)
    return known


def _journal(sessions: JournalServices, oid: bytes) -> JournalHead:
    if sessions.fork_point_cache is not None and sessions.fork_point_cache.oid == oid:
        return sessions.fork_point_cache.journal
    return decode(JournalHead, sessions.store.objects.get(Oid(oid))) if oid else EMPTY_JOURNAL


def load_fresh_fork(
    sessions: JournalServices, row: SessionRow, fork_point: ForkPointCache, machine: bytes
) -> LoadedSession:
    """Build the in-memory state of a session whose timeline has no events of its own.

    The state is a private copy.
    """
    store, journal = sessions.store, fork_point.journal
    line = EventLog(
        store.catalog, store.objects, sessions.chain, timeline=row.timeline, base=journal
    )
    tip = Tip(journal.seq, journal.hash, 0)
    epoch = (
        store.objects.sweep_lock.epoch() if store.cache.shared else -1
    )  # the epoch known here; it is fetched when the state is cached
    return LoadedSession(line, SessionState(sessions.maps, fork_point.fold), tip, machine, epoch)


def load_event_log(sessions: JournalServices, row: SessionRow) -> tuple[EventLog, bytes]:
    """Return the event log of a session and the machine image of its head."""
    store = sessions.store
    found = store.catalog.head(f"branch:{row.branch}")
    journal, machine = sealed_journal(sessions, row, found.oid if found else None)
    line = EventLog(
        store.catalog, store.objects, sessions.chain, timeline=row.timeline, base=journal
    )
    return line, machine


def load_session(sessions: JournalServices, row: SessionRow) -> LoadedSession:
    """Load the present state of a session, from the cache if possible."""
    store, epoch = sessions.store, epoch_of(sessions)
    line, machine = load_event_log(sessions, row)
    journal = line.base
    mind = SessionState.load(sessions.maps, store.objects, journal.fold)
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
    sessions: JournalServices, event_log: EventLog, state: SessionState, tip: Tip
) -> JournalHead:
    """Store the events that are not sealed yet and return the new journal."""
    failpoint("journal.before-seal")
    segment = event_log.seal(tip)  # raises if an event must not be stored
    return JournalHead(segment, tip.seq, tip.hash, state.save(sessions.store.objects))


def put_journal(sessions: JournalServices, journal: JournalHead) -> Oid:
    return sessions.store.objects.put(Kind.JOURNAL, encode(journal))


def row_on_new_timeline(sessions: JournalServices, row: SessionRow, target: Oid) -> SessionRow:
    """Return the session row on a new timeline that starts at the commit `target`."""
    objects = sessions.store.objects
    state = decode(State, objects.get(sessions.store.history.read(target).state))
    return msgspec.structs.replace(
        row,
        timeline=sessions.new_id(),
        sealed=state.journal,
        beliefs=state.memory,
        ledgers=ledgers_after_move(sessions, row, state.journal),
    )


def ledgers_after_move(sessions: JournalServices, row: SessionRow, journal: bytes) -> list[str]:
    """Return the ledgers of a session that continues from a journal.

    The ledger of that journal comes first. All others stay: what was done stays done.
    """
    known = ledgers_of(sessions.store.catalog, row)
    if not journal:
        return known
    origin = origin_of(sessions, _journal(sessions, journal))
    ledger = ledger_of(origin)
    if not origin or (not row.ledgers and ledger in known):
        return known  # the ledger of an earlier release is the family
    return [ledger, *(one for one in known if one != ledger)]


def move_row_changes(
    sessions: JournalServices, old: SessionRow, new: SessionRow, target: Oid
) -> list[RowChange]:
    """Return the row changes that move a session to `new`, with its inherited approvals.

    Effects of a commit that an earlier release copied from another store are added as well.
    """
    is_known = set(new.ledgers) <= set(ledgers_of(sessions.store.catalog, old))
    return [
        *SessionTable.move_changes(old, new),
        *([] if is_known else arriving_rows(sessions, [target])),
        *inherited_approval_rows([new], load_fork_point(sessions, new.sealed).fold),
    ]


def start_of(sessions: JournalServices, row: SessionRow, here: str = "") -> Timeline:
    """Return the timeline of a new row, which starts behind the journal in `row.sealed`.

    Args:
        here: id of a timeline that certainly exists in this catalog, to save a lookup.
    """
    if not row.sealed:
        return Timeline(row.timeline)
    journal = _journal(sessions, row.sealed)
    parent = _timeline(sessions, journal) if journal.segment else ""
    if parent not in ("", here) and sessions.store.catalog.timeline(parent) is None:
        parent = ""  # timeline of another host; its events are in the commit
    return Timeline(row.timeline, parent, journal.seq)


class _SegmentStart(StoredRecord, frozen=True):
    """First field of a Segment. The event headers that follow are not decoded."""

    timeline: bytes


def _is_on(sessions: JournalServices, timeline: str, journal: JournalHead) -> bool:
    """Return True if a journal ends on this timeline.

    The event row on the timeline is checked first: a segment holds the headers of all its events
    and is slow to read.
    """
    if not journal.segment:
        return False
    rows = sessions.store.catalog.events(timeline, journal.seq - 1, 1)
    if rows and sessions.store.objects.hasher.oid(rows[0].head) == journal.hash:
        return True
    return _timeline(sessions, journal) == timeline


def _timeline(sessions: JournalServices, journal: JournalHead) -> str:
    known = sessions.timelines.get(journal.segment)
    if known is None:
        objects = sessions.store.objects
        if len(sessions.timelines) >= _TIMELINE_CACHE_SIZE:
            sessions.timelines.clear()
        start = decode(_SegmentStart, objects.get(objects.replacement_of(Oid(journal.segment))))
        known = sessions.timelines[journal.segment] = start.timeline.hex()
    return known


def origin_of(sessions: JournalServices, journal: JournalHead) -> str:
    """Return the timeline that the first event of a journal was written on; "" without events.

    All commits of a family of sessions have the same origin, in every store.
    """
    if not journal.segment:
        return ""
    timeline = _timeline(sessions, journal)
    found = sessions.origins.get(timeline)
    if found is None:
        root = root_timeline(sessions.store.catalog, timeline)
        line = sessions.store.catalog.timeline(root)
        if line is not None and line.at == 0:
            found = root
        else:  # the first events are of another store
            *_, (_, first) = iter_segments(sessions.store.objects, journal.segment)
            found = first.timeline.hex()
        sessions.origins[timeline] = found
    return found


def journal_of(sessions: JournalServices, state: State) -> JournalHead:
    """Return the journal of a commit."""
    if not state.journal:
        return EMPTY_JOURNAL
    return decode(JournalHead, sessions.store.objects.get(Oid(state.journal)))

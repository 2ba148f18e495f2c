"""Commits of a session at any of its events, as starting points of forks and replays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode, encode
from ortet.backends.base import Append
from ortet.errors import NotFound
from ortet.history.records import Commit, JournalHead, State
from ortet.ids import Oid
from ortet.journal.event_log import EMPTY_JOURNAL, EventLog
from ortet.journal.events import Draft, Event, Tip
from ortet.journal.kinds.registry import kind_of
from ortet.journal.state.fold import fold
from ortet.journal.state.state import SessionState
from ortet.objects.base import Kind
from ortet.sessions.history.load import put_journal, row_on_new_timeline, start_of
from ortet.sessions.table import SessionRow
from ortet.store.sweep_retry import retry_on_sweep

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.session import Session


class _BaseCommit(msgspec.Struct, frozen=True):
    """The newest commit at or before an event, with its state."""

    journal: JournalHead = EMPTY_JOURNAL
    commit: Oid | None = None
    state: State = State()


def commit_at(sessions: SessionManager, row: SessionRow, event_log: EventLog, seq: int) -> Oid:
    """Return a commit of the session right after event `seq`.

    An existing commit at this event is returned; otherwise a new one is stored that nothing refers
    to yet. Its files are those of the last commit before, as no others were recorded. Must be
    called inside `store.writing()`, which must last until a head refers to the commit.

    Raises:
        NotFound: "no_event" if there is no such event.
    """
    store = sessions.store
    base = _newest(sessions, row, event_log, seq)
    if base.commit is not None and base.journal.seq == seq:
        return base.commit
    mind = SessionState.load(sessions.maps, store.objects, base.journal.fold)
    tip = Tip(base.journal.seq, base.journal.hash)
    for event in event_log.events(tip.seq, seq):
        fold(mind, [event])
        tip = Tip(event.seq, event.hash, event.time)
    if seq < 1 or tip.seq != seq:
        raise NotFound("no_event", f"session {row.name!r} has no event {seq}: s.events() has all")
    journal = JournalHead(
        event_log.seal(tip, base.journal), seq, tip.hash, mind.save(store.objects)
    )
    state = msgspec.structs.replace(base.state, journal=put_journal(sessions, journal))
    commit = Commit(
        state=store.objects.put(Kind.STATE, encode(state)),
        parents=[base.commit] if base.commit else [],
        message=f"event {seq}",
        time=store.clock.now_ns(),
        author=store.author,
    )
    oid = store.history.put(commit)
    store.objects.flush()
    return oid


def _newest(
    sessions: SessionManager, row: SessionRow, event_log: EventLog, seq: int
) -> _BaseCommit:
    """Return the newest commit on the branch at or before `seq`.

    If there is none, the files of the first commit are used.
    """
    store = sessions.store
    head = store.catalog.head(f"branch:{row.branch}")
    first = State()
    for oid in store.history.first_parents(head.oid) if head else ():
        state = store.history.state(oid)
        if not state.journal:
            continue
        first = msgspec.structs.replace(state, journal=b"")
        journal = decode(JournalHead, store.objects.get(Oid(state.journal)))
        if journal.seq <= seq and contains_journal(sessions, event_log, journal):
            return _BaseCommit(journal, oid, first)
    return _BaseCommit(state=first)


def contains_journal(sessions: SessionManager, event_log: EventLog, journal: JournalHead) -> bool:
    """Return True if the event log contains the last event of a journal."""
    found = list(event_log.rows(journal.seq - 1, journal.seq))
    return bool(found) and sessions.chain.tip(found[0]).hash == journal.hash


# Rewind to before an event and append other events, on a new timeline in one transaction.


@retry_on_sweep
def rewind_before_event(
    session: Session, seq: int, replacements: Callable[[], Sequence[Draft]] = lambda: ()
) -> None:
    """Move the session to before event `seq` and append replacement events.

    Messages from `seq` on are left behind. Facts, decisions and custom records are kept, as their
    event kinds say; effects and spends belong to the family. The commit made first is the way back.

    Args:
        seq: the event; not the first one.
        replacements: gives the events to append. It is called inside `store.writing()`.

    Raises:
        NotFound: "no_event" if there is no such event.
    """
    sessions, store, host = session._sessions, session.store, session._participant
    if not 1 < seq <= session._writer.tip.seq:
        raise NotFound("no_event", f"event {seq} of {session.name!r} cannot be gone back before")
    later = [event for event in session.events(seq) if kind_of(event.kind).survives_rewind]
    with store.writing():
        session.commit("before messages were taken back")
        point = commit_at(sessions, session.row, session.event_log, seq - 1)
        before = next(iter(session.event_log.rows(seq - 2, seq - 1)))
        given = replacements()
        timeline = start_of(sessions, row_on_new_timeline(sessions, session.row, point))
        tip, rows = sessions.chain.tip(before), []
        for draft in [*given, *_renumbered_drafts(later, seq + len(given))]:
            row, event = sessions.chain.make(tip, session._writer.redacted(draft), session._now())
            tip = Tip(event.seq, event.hash, event.time)
            rows.append(row)
        with host.with_timeline(timeline, Append(timeline.id, rows)):
            together = host.prepare_move(point)
        store.catalog.move(
            [],
            verb="rewind",
            actor=store.author,
            lease=together.lease,
            rows=together.rows,
            timelines=together.timelines,
            appends=together.appends if rows else [],
        )
        closing, host._on_moved = host._on_moved, session._switch_timeline
        try:
            host.finish_move()  # a call without its result stays open: another result may come
        finally:
            host._on_moved = closing
        host.dirty = True


def _renumbered_drafts(events: Sequence[Event], seq: int) -> list[Draft]:
    """Return drafts of the events with new numbers from `seq` on."""
    moved = {event.seq: seq + at for at, event in enumerate(events)}
    drafts = []
    for event in events:
        fields = kind_of(event.kind).seq_fields
        data = event.data | {name: moved.get(event.data[name], event.data[name]) for name in fields}
        refs = [(Oid(oid), Kind(kind)) for oid, kind in event.refs]
        drafts.append(Draft(event.kind, data, event.actor, refs, event.version))
    return drafts

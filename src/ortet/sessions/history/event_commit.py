"""Commits of a session at any of its events, as starting points of forks and replays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode, encode
from ortet.errors import NotFound
from ortet.history.records import Commit, JournalHead, State
from ortet.ids import Oid
from ortet.journal.event_log import EMPTY_JOURNAL, EventLog
from ortet.journal.events import Event, Tip
from ortet.journal.kinds.registry import fold
from ortet.journal.state.state import SessionState
from ortet.objects.base import Kind
from ortet.sessions.history.load import put_journal
from ortet.sessions.table import SessionRow
from ortet.workspaces.undo import TurnStart

if TYPE_CHECKING:
    from ortet.sessions.services import JournalServices


class _BaseCommit(msgspec.Struct, frozen=True):
    """The newest commit at or before an event, with its state."""

    journal: JournalHead = EMPTY_JOURNAL
    commit: Oid | None = None
    state: State = State()


def commit_at(sessions: JournalServices, row: SessionRow, event_log: EventLog, seq: int) -> Oid:
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


def find_turn_start(
    sessions: JournalServices, row: SessionRow, event_log: EventLog, n: int
) -> TurnStart:
    """Return the state before the n-th last message of the user.

    Its files are those of the last commit before. Must be called inside `store.writing()`, as
    `commit_at`.

    Raises:
        NotFound: "nothing_to_undo" if there are fewer messages.
    """
    asked = [event.seq for event in event_log.events() if is_user_message(event)]
    if len(asked) < n:
        few = f"only {len(asked)} turns can be undone here: give a number up to that"
        none = "the user said nothing yet: `ortet undo` undoes moves of the branch"
        raise NotFound("nothing_to_undo", few if asked else none)
    seq = asked[-n] - 1

    def is_reached(oid: Oid) -> bool:
        state = sessions.store.history.state(oid)
        if not state.journal:
            return True
        return decode(JournalHead, sessions.store.objects.get(Oid(state.journal))).seq <= seq

    return TurnStart(commit_at(sessions, row, event_log, seq), is_reached)


def is_user_message(event: Event) -> bool:
    """Return True if a turn begins with this event."""
    return event.kind == "message" and event.data.get("role") == "user"


def _newest(
    sessions: JournalServices, row: SessionRow, event_log: EventLog, seq: int
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


def contains_journal(sessions: JournalServices, event_log: EventLog, journal: JournalHead) -> bool:
    """Return True if the event log contains the last event of a journal."""
    found = list(event_log.rows(journal.seq - 1, journal.seq))
    return bool(found) and sessions.chain.tip(found[0]).hash == journal.hash

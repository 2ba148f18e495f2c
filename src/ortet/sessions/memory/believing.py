"""What a session believes: its own facts, and those of the memories it shares; and how what it
learned for others gets there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode, encode
from ortet.backends.base import Lease, RowChange
from ortet.journal.event_log import EventLog
from ortet.journal.events import Draft, Event
from ortet.journal.state.records import Episode, Fact
from ortet.journal.state.state import SessionState
from ortet.sessions.memory.shared_scopes import AGENT, SharedScope, is_family_root, name_of
from ortet.sessions.table import SessionRow, SessionTable

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager

PUBLISH_PROGRESS = "told"
"""Rows of this kind, by session, say how far its events were looked through for what others may
know."""

_KINDS = ("fact", "lesson", "episode")


class PublishProgress(msgspec.Struct, frozen=True):
    timeline: str
    seq: int


def scopes_of(row: SessionRow, state: SessionState) -> list[str]:
    """The names of the memories that a session shares: its agent's, those it was opened with, and
    those it has learned something for."""
    words = {AGENT, *row.scopes, *state.core.shared}
    return sorted(name_of(row.agent, word) for word in words)


def load_shared_scopes(
    sessions: SessionManager, row: SessionRow, state: SessionState
) -> list[SharedScope]:
    """These memories, as they are now or, of a session that was forked or restored, as they were
    then."""
    if row.beliefs is not None:
        return sessions.scopes.at_commit(row.beliefs)
    known = (sessions.scopes.current(name) for name in scopes_of(row, state))
    return [one for one in known if one is not None]


def seal_shared_memory(sessions: SessionManager, row: SessionRow, state: SessionState) -> bytes:
    """The Memory for a commit of this session that is about to be made."""
    if row.beliefs is not None:
        return row.beliefs
    return sessions.scopes.seal(scopes_of(row, state))


def facts_of(
    state: SessionState, shared: Iterable[SharedScope], *, past: bool = False
) -> dict[str, Fact]:
    """By id, what is believed; `past`: what was, too. What this session gave up is given up here,
    whatever others believe; what others gave up counts, once it was published."""
    found: dict[str, Fact] = {}
    ended: dict[str, Fact] = {}
    for fact in state.facts:
        found[fact.id] = fact
    for one in shared:
        for fact in one.mind.facts:
            if fact.id not in found:  # it knew its own before the others did
                found[fact.id] = msgspec.structs.replace(fact, scope=_word(one.name))
        for fact in one.mind.past:
            ended[fact.id] = msgspec.structs.replace(fact, scope=_word(one.name))
    for fact in state.past:
        known = found.get(fact.id)
        if known is not None and not fact.text:
            fact = msgspec.structs.replace(  # noqa: PLW2901
                known, ended=fact.ended, ended_by=fact.ended_by, why=fact.why
            )
        ended[fact.id] = fact
    for id_ in ended:
        found.pop(id_, None)
    return {**found, **{id_: one for id_, one in ended.items() if one.text}} if past else found


def fact_in(state: SessionState, shared: Iterable[SharedScope], id_: str) -> Fact | None:
    """One that is believed, without a look at all others."""
    if state.past.get(id_) is not None:
        return None
    found = state.facts.get(id_)
    for one in shared:
        if one.mind.past.get(id_) is not None:
            return None
        fact = one.mind.facts.get(id_)
        if fact is not None and found is None:
            found = msgspec.structs.replace(fact, scope=_word(one.name))
    return found


def episodes_of(state: SessionState, shared: Iterable[SharedScope]) -> dict[str, Episode]:
    """Its own, and those that were published."""
    found = {one.id: one for known in shared for one in known.mind.episodes}
    return {**found, **{one.id: one for one in state.episodes}}


def _word(name: str) -> str:
    """As facts name a scope."""
    return AGENT if name.startswith(f"{AGENT}:") else name


# for others


def publish(
    sessions: SessionManager,
    row: SessionRow,
    *,
    event_log: EventLog,
    state: SessionState,
    upto: int,
    lease: Lease | None = None,
) -> SessionRow:
    """Tell shared memories what this session has learned for them, up to an event that a commit
    holds; forks tell nothing. Returns its row: who has told something knows what others told."""
    if is_published(sessions, row, event_log, state, upto):
        return row
    done = _published_seq(sessions, row, event_log)
    found: dict[str, list[Draft]] = {}
    for event in event_log.events(done, upto):
        scope = event.data.get("scope") if event.kind in _KINDS else ""
        if scope:
            found.setdefault(name_of(row.agent, scope), []).append(_draft(row, event))
    before = {one.name: one for one in sessions.scopes.at_commit(row.beliefs or b"")}
    told = RowChange(PUBLISH_PROGRESS, row.id, encode(PublishProgress(event_log.timeline, upto)))
    now = msgspec.structs.replace(row, beliefs=None)
    for number, (name, drafts) in enumerate(sorted(found.items()), 1):
        known = before.get(name)
        strange = known is not None and _is_foreign(sessions, known)
        brought = _foreign_drafts(sessions, known) if known is not None and strange else ()
        sessions.scopes.publish(
            name,
            [*brought, *drafts],
            lease=lease,
            rows=[told, SessionTable.update_change(now)] if number == len(found) else [],
            begin=known.journal if known is not None and strange else b"",
        )
    return now if found else row


def is_published(
    sessions: SessionManager, row: SessionRow, event_log: EventLog, state: SessionState, upto: int
) -> bool:
    """Whether there is nothing to tell of what happened up to an event."""
    if not is_family_root(row) or not state.core.shared:
        return True
    return _published_seq(sessions, row, event_log) >= min(upto, max(state.core.shared.values()))


def _published_seq(sessions: SessionManager, row: SessionRow, event_log: EventLog) -> int:
    """The last event of this line that was looked at."""
    found = sessions.hub.catalog.row(PUBLISH_PROGRESS, row.id)
    if found is None:
        return 0
    told = decode(PublishProgress, found.value)
    return next(
        (min(told.seq, s.upto) for s in event_log.timeline_spans() if s.timeline == told.timeline),
        0,
    )


def _draft(row: SessionRow, event: Event) -> Draft:
    here = {"timeline": event.timeline, "seq": event.seq, "session": row.id}
    data = {key: value for key, value in event.data.items() if key not in ("scope", "merged")}
    data = {"source": here, **data, "told": here}
    if event.kind == "episode":
        data = {"session": row.name, "time": event.time, **data}
    return Draft(event.kind, data, event.actor)


def _is_foreign(sessions: SessionManager, scope: SharedScope) -> bool:
    """Whether a memory that a commit brought is another store's, or went on in one."""
    spans = scope.spans(sessions)
    return any(sessions.hub.catalog.timeline(span.timeline) is None for span in spans)


def _foreign_drafts(sessions: SessionManager, scope: SharedScope) -> Iterator[Draft]:
    """What such a memory knows, for the one of this store."""
    for event in scope.events(sessions):
        if event.kind in _KINDS and not event.erased:
            yield Draft(event.kind, event.data, event.actor)

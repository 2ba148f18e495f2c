"""The facts that a session sees, its own and shared ones, and how it publishes facts."""

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
"""Row kind by session: the position up to which its events were searched for facts to publish."""

_KINDS = ("fact", "lesson", "episode")


class PublishProgress(msgspec.Struct, frozen=True):
    timeline: str
    seq: int


def scopes_of(row: SessionRow, state: SessionState) -> list[str]:
    """Return the names of the scopes that a session shares.

    These are the scope of its agent, those it was opened with, and those it has recorded facts for.
    """
    words = {AGENT, *row.scopes, *state.core.shared}
    return sorted(name_of(row.agent, word) for word in words)


def load_shared_scopes(
    sessions: SessionManager, row: SessionRow, state: SessionState
) -> list[SharedScope]:
    """Return the shared scopes that a session sees.

    A forked or restored session sees them as of its commit, any other as they are now.
    """
    if row.beliefs is not None:
        return sessions.scopes.at_commit(row.beliefs)
    known = (sessions.scopes.current(name) for name in scopes_of(row, state))
    return [one for one in known if one is not None]


def seal_shared_memory(sessions: SessionManager, row: SessionRow, state: SessionState) -> bytes:
    """Return the Memory record id for a commit that is about to be made."""
    if row.beliefs is not None:
        return row.beliefs
    return sessions.scopes.seal(scopes_of(row, state))


def facts_of(
    state: SessionState, shared: Iterable[SharedScope], *, past: bool = False
) -> dict[str, Fact]:
    """Return the facts that are believed, by id; with `past` also retracted ones.

    A fact that this session retracted is retracted here, whatever others believe. A retraction by
    others counts once it is published.
    """
    found: dict[str, Fact] = {}
    ended: dict[str, Fact] = {}
    for fact in state.facts:
        found[fact.id] = fact
    for one in shared:
        for fact in one.mind.facts:
            if fact.id not in found:  # the session's own copy is older
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
    """Return one believed fact by id, without loading all facts, or None."""
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
    """Return the session's own episodes and the published ones, by id."""
    found = {one.id: one for known in shared for one in known.mind.episodes}
    return {**found, **{one.id: one for one in state.episodes}}


def _word(name: str) -> str:
    """Return the scope name as facts have it."""
    return AGENT if name.startswith(f"{AGENT}:") else name


# publishing


def publish(
    sessions: SessionManager,
    row: SessionRow,
    *,
    event_log: EventLog,
    state: SessionState,
    upto: int,
    lease: Lease | None = None,
) -> SessionRow:
    """Publish the facts of this session to shared scopes, up to event `upto`, which a commit holds.

    Forks publish nothing until they are adopted.

    Returns:
        The session row. After publishing, the session follows the newest shared facts.
    """
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
    """Return True if there is nothing to publish up to event `upto`."""
    if not is_family_root(row) or not state.core.shared:
        return True
    return _published_seq(sessions, row, event_log) >= min(upto, max(state.core.shared.values()))


def _published_seq(sessions: SessionManager, row: SessionRow, event_log: EventLog) -> int:
    """Return the last event of this log that was searched for facts to publish."""
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
    """Return True if the scope of a commit comes from another store, or continued in one."""
    spans = scope.spans(sessions)
    return any(sessions.hub.catalog.timeline(span.timeline) is None for span in spans)


def _foreign_drafts(sessions: SessionManager, scope: SharedScope) -> Iterator[Draft]:
    """Iterate over the facts of a foreign scope, as drafts for the scope of this store."""
    for event in scope.events(sessions):
        if event.kind in _KINDS and not event.erased:
            yield Draft(event.kind, event.data, event.actor)

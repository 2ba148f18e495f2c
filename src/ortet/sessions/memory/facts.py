"""The facts that a session sees, its own and shared ones, and how it publishes facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.validation import FLAG, TEXT, optional, require
from ortet.backends.base import Lease, RowChange
from ortet.journal.event_log import EventLog
from ortet.journal.events import Draft, Event
from ortet.journal.kinds.registry import kind_of
from ortet.journal.state.merge import Contradiction
from ortet.journal.state.records import Episode, Fact
from ortet.journal.state.state import SessionState
from ortet.memory.extraction.contradictions import Claim, Detector, NearDuplicateIndex, RuleDetector
from ortet.sessions.memory.shared_scopes import (
    AGENT,
    SharedScope,
    check_scope,
    is_family_root,
    name_of,
)
from ortet.sessions.table import SessionRow, SessionTable
from ortet.sessions.times import Moment, ns_of

if TYPE_CHECKING:
    from ortet.sessions.context import SessionContext, SessionServices


PUBLISH_PROGRESS = "told"
"""Row kind by session: the position up to which its events were searched for facts to publish."""


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
    sessions: SessionServices, row: SessionRow, state: SessionState
) -> list[SharedScope]:
    """Return the shared scopes that a session sees.

    A forked or restored session sees them as of its commit, any other as they are now.
    """
    if row.beliefs is not None:
        return sessions.scopes.at_commit(row.beliefs)
    known = (sessions.scopes.current(name) for name in scopes_of(row, state))
    return [one for one in known if one is not None]


def seal_shared_memory(sessions: SessionServices, row: SessionRow, state: SessionState) -> bytes:
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


def shared_scopes_of(context: SessionContext) -> list[SharedScope]:
    """Return the shared scopes as far as an open or read session sees them."""
    return load_shared_scopes(context.services, context.row, context.state)


def believed_facts(
    context: SessionContext,
    *,
    scope: str | None = None,
    about: str | None = None,
    at: Moment | None = None,
    on: Moment | None = None,
    past: bool = False,
) -> list[Fact]:
    """Return the believed facts, oldest first; see `SessionMemory.facts`."""
    optional(TEXT, scope=scope, about=about)
    require(FLAG, past=past)
    believed, valid = ns_of("at", at), ns_of("on", on)
    word = check_scope(scope) if scope is not None else None
    found = facts_of(context.state, shared_scopes_of(context), past=past or bool(believed)).values()
    return sorted(
        (
            fact
            for fact in found
            if (word is None or fact.scope == word)
            and (about is None or fact.about == about)
            and (not believed or _was_believed_at(fact, believed))
            and (not valid or holds(fact.since, fact.until, valid))
        ),
        key=lambda fact: (fact.time, fact.id),
    )


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
    sessions: SessionServices,
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
        scope = event.data.get("scope") if kind_of(event.kind).shareable else ""
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


def publish_context(
    context: SessionContext, event_log: EventLog, state: SessionState, *, upto: int, lease: Lease
) -> None:
    """Publish the facts of an open session up to event `upto`; see `publish`."""
    context.set_row(
        publish(
            context.services, context.row, event_log=event_log, state=state, upto=upto, lease=lease
        )
    )


def set_shared_memory(context: SessionContext, lease: Lease, memory: bytes | None) -> None:
    """Use the shared facts of `memory`, or always the newest ones if it is None."""
    if context.row.beliefs != memory:
        row = msgspec.structs.replace(context.row, beliefs=memory)
        context.store.catalog.move(
            [], verb="refresh", lease=lease, rows=[SessionTable.update_change(row)]
        )
        context.set_row(row)


def is_published(
    sessions: SessionServices, row: SessionRow, event_log: EventLog, state: SessionState, upto: int
) -> bool:
    """Return True if there is nothing to publish up to event `upto`."""
    if not is_family_root(row) or not state.core.shared:
        return True
    return _published_seq(sessions, row, event_log) >= min(upto, max(state.core.shared.values()))


def _published_seq(sessions: SessionServices, row: SessionRow, event_log: EventLog) -> int:
    """Return the last event of this log that was searched for facts to publish."""
    found = sessions.store.catalog.row(PUBLISH_PROGRESS, row.id)
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


def _is_foreign(sessions: SessionServices, scope: SharedScope) -> bool:
    """Return True if the scope of a commit comes from another store, or continued in one."""
    spans = scope.spans(sessions)
    return any(sessions.store.catalog.timeline(span.timeline) is None for span in spans)


def _foreign_drafts(sessions: SessionServices, scope: SharedScope) -> Iterator[Draft]:
    """Iterate over the facts of a foreign scope, as drafts for the scope of this store."""
    for event in scope.events(sessions):
        if kind_of(event.kind).shareable and not event.erased:
            yield Draft(event.kind, event.data, event.actor)


# Detection of contradictions between believed facts.

_MIN_SIMILARITY = 0.2
"""Similarity from which facts without a subject are compared. Comparing all pairs is too slow."""
_MAX_COMPARED = 500
"""Number of older facts on a subject that a new fact is compared with, newest first."""


def find_contradictions(
    facts: Sequence[Fact], detector: Detector | None = None
) -> list[Contradiction]:
    """Compare each fact with earlier facts on the same subject."""
    detect = detector if detector is not None else RuleDetector()
    known = {fact.id: fact for fact in facts if not fact.lesson}
    found = []
    for new, others in _pairs(list(known.values())):
        before = [_claim(other) for other in others]
        for id_ in detect(_claim(new), before) if before else ():
            if id_ in known:
                found.append(Contradiction(new.about or known[id_].about, known[id_], new))
    return found


def _pairs(facts: Sequence[Fact]) -> Iterator[tuple[Fact, list[Fact]]]:
    about: dict[str, list[Fact]] = {}
    alike = NearDuplicateIndex()
    known: dict[str, Fact] = {}
    for fact in facts:
        subject = fact.about.casefold().strip()
        if subject:
            others = about.setdefault(subject, [])
            yield fact, others[-_MAX_COMPARED:]
            others.append(fact)
        else:
            yield (
                fact,
                [
                    known[near.id]
                    for near in alike.find_similar(fact.text, _MIN_SIMILARITY)[:_MAX_COMPARED]
                ],
            )
            alike.add(fact.id, fact.text)
            known[fact.id] = fact


def _claim(fact: Fact) -> Claim:
    return Claim(fact.id, fact.text, fact.about, fact.since, fact.until)


def holds(since: int, until: int, moment: int) -> bool:
    """Return True if something is valid at a moment. 0 means no limit."""
    return (not since or since <= moment) and (not until or moment < until)


def _was_believed_at(fact: Fact, at: int) -> bool:
    return fact.time <= at and (not fact.ended or fact.ended > at)


def superseded_chain(known: dict[str, Fact], fact: Fact) -> list[Fact]:
    found: list[Fact] = []
    seen = {fact.id}
    while fact.supersedes in known and fact.supersedes not in seen:
        fact = known[fact.supersedes]
        seen.add(fact.id)
        found.append(fact)
    return found[::-1]

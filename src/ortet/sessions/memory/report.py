"""Memory reports: Markdown for people, and differences between two commits."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from ortet.errors import NotFound
from ortet.ids import Oid
from ortet.journal.conversation.text import one_line
from ortet.journal.events import Event
from ortet.journal.state.records import Decision, Episode, Fact, SourceEventRef
from ortet.journal.state.state import SessionState
from ortet.sessions.history.load import journal_of
from ortet.sessions.memory.facts import episodes_of, facts_of
from ortet.sessions.times import day

if TYPE_CHECKING:
    from ortet.sessions.context import SessionServices
    from ortet.sessions.memory.shared_scopes import SharedScope
    from ortet.sessions.reader import SessionReader

_MAX_LINE_CHARS = 10_000


class MemoryDiff(msgspec.Struct, frozen=True):
    """The differences in memory from one commit to another.

    Attributes:
        learned: Facts that only the newer one believes.
        given_up: Facts that only the older one believes, with the reason of their end.
        episodes: Episodes between the two.
        decisions: Decisions between the two.
    """

    learned: list[Fact]
    given_up: list[Fact]
    episodes: list[Episode]
    decisions: list[Decision]

    @property
    def same(self) -> bool:
        return not (self.learned or self.given_up or self.episodes or self.decisions)


class MemorySnapshot(msgspec.Struct, frozen=True):
    """The memory at one moment, by id. `all` includes retracted facts."""

    facts: dict[str, Fact] = {}
    all: dict[str, Fact] = {}
    episodes: dict[str, Episode] = {}
    decisions: dict[str, Decision] = {}


def memory_diff(sessions: SessionServices, old: Oid, new: Oid) -> MemoryDiff:
    """Return the memory differences of two commits; see `MemoryQueries.diff`."""
    return memory_between(memory_at_commit(sessions, old), memory_at_commit(sessions, new))


def memory_between(before: MemorySnapshot, after: MemorySnapshot) -> MemoryDiff:
    gone = []
    for id_, fact in before.facts.items():
        if id_ not in after.facts:
            ended = after.all.get(id_)  # has the reason, if the fact was retracted on the way
            gone.append(ended if ended is not None else fact)
    return MemoryDiff(
        learned=_by_time(fact for id_, fact in after.facts.items() if id_ not in before.facts),
        given_up=_by_time(gone),
        episodes=sorted(
            (one for id_, one in after.episodes.items() if id_ not in before.episodes),
            key=lambda one: one.time,
        ),
        decisions=sorted(
            (one for id_, one in after.decisions.items() if id_ not in before.decisions),
            key=lambda one: one.seq,
        ),
    )


def memory_at_commit(sessions: SessionServices, commit: Oid) -> MemorySnapshot:
    store = sessions.store
    state = store.history.state(commit)
    mind = SessionState.load(sessions.maps, store.objects, journal_of(sessions, state).fold)
    return _memory_snapshot(mind, sessions.scopes.at_commit(state.memory))


def memory_of_session(view: SessionReader) -> MemorySnapshot:
    """Return the memory of a session now."""
    return _memory_snapshot(view.internals.state, view.memory.shared())


def _memory_snapshot(state: SessionState, shared: list[SharedScope]) -> MemorySnapshot:
    return MemorySnapshot(
        facts=facts_of(state, shared),
        all=facts_of(state, shared, past=True),
        episodes=episodes_of(state, shared),
        decisions={one.id: one for one in state.decisions},
    )


def _by_time(facts: Iterable[Fact]) -> list[Fact]:
    return sorted(facts, key=lambda fact: (fact.time, fact.id))


def origin_of(view: SessionReader, fact: Fact) -> SourceEventRef | None:
    """Return the event that a fact comes from, or else the event that records it."""
    if fact.source is not None:
        return fact.source
    own = view.internals.state.facts.get(fact.id) or view.internals.state.past.get(fact.id)
    if own is not None and own.text:
        for event in view.events(own.seq - 1, own.seq):
            return SourceEventRef(event.timeline, event.seq, view.id)
    return None


def event_at(view: SessionReader, origin: SourceEventRef) -> Event | None:
    """Return the event at an origin, or None if its session was removed or is in another store."""
    store = view.internals.store
    for row in store.catalog.events(origin.timeline, origin.seq - 1, 1):
        if row.seq == origin.seq:  # also if its session was restored to an earlier commit
            return view.internals.services.chain.read(row, origin.timeline)
    readers = [view.internals.context]
    if origin.session not in ("", view.id):
        with suppress(NotFound):
            readers.append(view.internals.services.read(origin.session))
    for reader in readers:  # rows that were trimmed from the catalog are in commits
        for event in reader.events(origin.seq - 1, origin.seq):
            if event.timeline == origin.timeline:
                return event
    return None


def markdown(view: SessionReader) -> str:
    """Return all facts, decisions and episodes of a session as Markdown."""
    facts = view.facts()
    lines = [f"# Memory of {view.name} ({view.agent})", ""]
    if view.goal:
        lines += [f"Goal: {one_line(view.goal, _MAX_LINE_CHARS)}", ""]
    scopes = sorted({fact.scope for fact in facts})
    for scope in scopes:
        lines += [f"## What {_scope_heading(scope)}", ""]
        chosen = [fact for fact in facts if fact.scope == scope]
        for about in sorted({fact.about for fact in chosen}):
            lines += [f"### {one_line(about, 200)}", ""] if about else []
            lines += [_fact(fact) for fact in chosen if fact.about == about]
            lines.append("")
    if decisions := view.conversation.decisions():
        lines += ["## Decisions", ""]
        for made in sorted(decisions, key=lambda one: one.seq):
            why = f", because {one_line(made.why, _MAX_LINE_CHARS)}" if made.why else ""
            lines.append(f"- {one_line(made.text, _MAX_LINE_CHARS)}{why}")
        lines.append("")
    if episodes := view.memory.episodes():
        lines += ["## What happened", ""]
        for one in episodes:
            outcome = f", {one_line(one.outcome, 200)}" if one.outcome else ""
            lines += [
                f"### {day(one.time)} {one.session or view.name}{outcome}",
                "",
                *(f"> {line}" for line in one.summary.splitlines()),
                "",
            ]
    return "\n".join(lines).rstrip() + "\n"


def _scope_heading(scope: str) -> str:
    if not scope:
        return "this session knows"
    kind, _, name = scope.partition(":")
    return f"everyone of {kind} {name} knows" if name else f"every session of the {kind} knows"


def _fact(fact: Fact) -> str:
    marks = []
    if fact.lesson:
        marks.append("lesson")
    if fact.confidence != 1.0:
        marks.append(f"confidence {fact.confidence:g}")
    if fact.since:
        marks.append(f"since {day(fact.since)}")
    if fact.until:
        marks.append(f"until {day(fact.until)}")
    if fact.supersedes:
        marks.append("corrected")
    said = f" ({', '.join(marks)})" if marks else ""
    return f"- {one_line(fact.text, _MAX_LINE_CHARS)}{said} `{fact.id[-8:]}`"

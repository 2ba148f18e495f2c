"""Consolidation: facts are extracted from the episodes of an agent into its shared scopes.

An episode's facts go to the scope that the episode was published to: the agent or a user. It only
adds facts, each with its source. Repeating it adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.failpoints import failpoint
from ortet._util.validation import COUNT, FRACTION, LIST, check_text, optional, require
from ortet.backends.base import RowChange
from ortet.errors import Invalid, OrtetError
from ortet.journal.conversation.superseded import SeqRange, is_superseded
from ortet.journal.events import Draft, Event
from ortet.journal.state.records import Episode, Fact, message_of
from ortet.journal.state.state import SessionState
from ortet.memory.extraction.contradictions import NearDuplicateIndex
from ortet.memory.extraction.facts import Extracted, Extractor, SpokenTurn
from ortet.sessions.memory.episodes import turns_of
from ortet.sessions.memory.facts import facts_of, scopes_of
from ortet.sessions.memory.recall import session_event_log
from ortet.sessions.memory.shared_scopes import AGENT, name_of, users_of

if TYPE_CHECKING:
    from ortet.sessions.context import SessionContext, SessionServices


class ConsolidationReport(msgspec.Struct, frozen=True):
    """The result of a consolidation.

    Attributes:
        agent: The agent.
        episodes: Number of episodes that were processed.
        facts: New facts.
        linked: Pairs of a text and the id of the fact that already says it.
        dry_run: True if nothing was written.
    """

    agent: str
    episodes: int
    facts: list[Fact]
    linked: list[tuple[str, str]]
    dry_run: bool = False


class _MemoryFacts:
    """The facts of a scope, with its retracted facts."""

    def __init__(self, state: SessionState) -> None:
        self.state = state
        self._retracted = {fact.id: fact for fact in state.past if fact.text}

    @cached_property
    def near_duplicates(self) -> NearDuplicateIndex:
        return NearDuplicateIndex(
            (fact.id, fact.text) for fact in facts_of(self.state, ()).values()
        )

    @cached_property
    def _retracted_duplicates(self) -> NearDuplicateIndex:
        return NearDuplicateIndex((fact.id, fact.text) for fact in self._retracted.values())

    def find_retracted(self, text: str, since: int) -> str:
        """Return the fact with exactly this text that was retracted since then, or ""."""
        gone = (one.id for one in self._retracted_duplicates.find_similar(text) if one.exact)
        return next((one for one in gone if self._retracted[one].ended >= since), "")

    def says(self, text: str) -> str:
        same = self.near_duplicates.nearest(text)
        return same.id if same is not None and same.exact else ""


def consolidate(
    sessions: SessionServices, agent: str, extractor: Extractor, *, dry_run: bool
) -> ConsolidationReport:
    """Consolidate the episodes of an agent; see `MemoryQueries.consolidate`.

    Each episode is one transaction, so that an interrupted run continues with the next one.
    """
    users = {one for row in sessions.all() if row.agent == agent for one in users_of(row)}
    names = [name_of(agent, AGENT), *sorted(users)]
    memories: dict[str, _MemoryFacts] = {}
    report = ConsolidationReport(agent, 0, [], [], dry_run)
    for name in names:
        here = _memory(sessions, name, memories)
        todo = [
            one
            for one in (_agent_episodes(here.state, agent) if here else ())
            if not _is_done(sessions, agent, one, extractor)
        ]
        for episode in todo:
            drafts = _new_facts(
                sessions, name, memories, episode, extractor=extractor, report=report
            )
            if not dry_run:
                done = RowChange(_kind(agent), f"{episode.id}/{extractor.name}", b"")
                sessions.scopes.publish(name, drafts, lease=None, rows=[done])
                failpoint("consolidate.episode")
        report = msgspec.structs.replace(report, episodes=report.episodes + len(todo))
    return report


def _new_facts(
    sessions: SessionServices,
    name: str,
    memories: dict[str, _MemoryFacts],
    episode: Episode,
    *,
    extractor: Extractor,
    report: ConsolidationReport,
) -> list[Draft]:
    """Return drafts of the new facts of an episode, and add them to the report."""
    here = memories[name]
    view = _session(sessions, episode)
    own = _MemoryFacts(view.state) if view is not None else None
    # a fact that was corrected for a user or project must not return for everyone
    shared = scopes_of(view.row, view.state) if view is not None else []
    others = (_memory(sessions, one, memories) for one in shared if one != name)
    beside = [here, *(one for one in others if one is not None)]
    turns, events = _turns(sessions, episode, view.state.core.aside if view is not None else ())
    drafts: list[Draft] = []
    for found in _checked_extractions(extractor, episode.summary, turns):
        id_ = _id(sessions, extractor, episode, found)
        if here.state.facts.get(id_) or here.state.past.get(id_):
            continue
        # a later retraction already took this statement into account
        told = (
            own.find_retracted(found.text, _statement_time(found, events, episode)) if own else ""
        )
        told = told or next(
            filter(None, (one.find_retracted(found.text, episode.time) for one in beside)), ""
        )
        told = told or next(filter(None, (one.says(found.text) for one in beside)), "")
        if told:
            report.linked.append((found.text, told))
            continue
        same = here.near_duplicates.nearest(found.text)
        data = _data(id_, episode, found, events, extractor)
        if same is not None:
            data["like"] = same.id
            report.linked.append((found.text, same.id))
        here.near_duplicates.add(id_, found.text)
        drafts.append(Draft("fact", data, sessions.store.author))
        report.facts.append(_fact(data, AGENT if name.startswith(f"{AGENT}:") else name))
    return drafts


def _checked_extractions(
    extractor: Extractor, summary: str, turns: Sequence[SpokenTurn]
) -> Iterator[Extracted]:
    """Iterate over checked extractions, as a model may have made them. Empty texts are skipped."""
    found = extractor(summary, turns)
    require(LIST, found=found)
    for one in found:
        if not isinstance(one, Extracted):
            raise Invalid(
                "bad_extracted",
                f"the extractor {extractor.name} gave {type(one).__name__}: give Extracted(text)",
            )
        check_text(text=one.text, about=one.about)
        require(FRACTION, confidence=one.confidence)
        optional(COUNT, turn=one.turn)
        if one.text.strip():
            yield one


def _session(sessions: SessionServices, episode: Episode) -> SessionContext | None:
    """Return the session of an episode, or None if it was removed or is in another store."""
    try:
        return sessions.read(episode.source.session) if episode.source is not None else None
    except OrtetError:
        return None


def _memory(
    sessions: SessionServices, name: str, memories: dict[str, _MemoryFacts]
) -> _MemoryFacts | None:
    if name not in memories and (known := sessions.scopes.current(name)) is not None:
        memories[name] = _MemoryFacts(known.mind)
    return memories.get(name)


def _statement_time(extracted: Extracted, events: Sequence[Event], episode: Episode) -> int:
    """Return the time of the turn that the statement comes from, or that of the episode."""
    if extracted.turn is not None and 0 <= extracted.turn < len(events):
        return events[extracted.turn].time
    return episode.time


def _kind(agent: str) -> str:
    return f"consolidated/{agent}"


def _is_done(sessions: SessionServices, agent: str, episode: Episode, extractor: Extractor) -> bool:
    key = f"{episode.id}/{extractor.name}"
    return sessions.store.catalog.row(_kind(agent), key) is not None


def _agent_episodes(state: SessionState, agent: str) -> list[Episode]:
    """Return the episodes of the agent: a user has several agents."""
    found = (one for one in state.episodes if one.participants[:1] in ([], [agent]))
    return sorted(found, key=lambda one: (one.time, one.id))


def _turns(
    sessions: SessionServices, episode: Episode, aside: Sequence[SeqRange]
) -> tuple[list[SpokenTurn], list[Event]]:
    """Return the messages of an episode that are not superseded, if its session still exists."""
    said = (one for one in _events(sessions, episode) if one.kind == "message" and not one.erased)
    here = (event for event in said if not is_superseded(aside, event.seq))
    events = [event for event in here if turns_of([message_of(event)])]
    return [turn for event in events for turn in turns_of([message_of(event)])], events


def _events(sessions: SessionServices, episode: Episode) -> Iterator[Event]:
    source = episode.source
    if source is None or not source.session or not episode.last:
        return
    try:
        line = session_event_log(sessions, sessions.table.get(source.session))
    except OrtetError:  # the session was removed; the episode stays
        return
    # after a restore, these numbers may belong to other events
    upto = next((s.upto for s in line.timeline_spans() if s.timeline == source.timeline), 0)
    if upto >= source.seq:
        yield from line.events(episode.first - 1, episode.last)


def _id(
    sessions: SessionServices, extractor: Extractor, episode: Episode, extracted: Extracted
) -> str:
    """Return a deterministic id: consolidating the same statement twice yields the same fact."""
    said = f"{extractor.name}\n{episode.id}\n{extracted.about}\n{extracted.text}"
    return sessions.store.objects.hasher.oid(said.encode("utf-8", "surrogatepass")).hex()[:32]


def _data(
    id_: str, episode: Episode, extracted: Extracted, events: Sequence[Event], extractor: Extractor
) -> dict[str, Any]:
    source: dict[str, Any] = {}
    if episode.source is not None:
        source = msgspec.to_builtins(episode.source)
    if extracted.turn is not None and 0 <= extracted.turn < len(events):
        event = events[extracted.turn]
        source = {**source, "timeline": event.timeline, "seq": event.seq}
    data = {
        "id": id_,
        "text": extracted.text,
        "about": extracted.about,
        "confidence": extracted.confidence,
    }
    return {**data, "source": source, "episode": episode.id, "extractor": extractor.name}


def _fact(data: dict[str, Any], scope: str) -> Fact:
    return Fact(
        id=data["id"],
        text=data["text"],
        about=data["about"],
        confidence=data["confidence"],
        scope=scope,
        like=data.get("like", ""),
    )

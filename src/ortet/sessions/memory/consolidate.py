"""Consolidation: episodes of an agent become facts for those who were told them: all its sessions,
or those of a user. It only adds, says where each is from, and does the same again for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.failpoints import reach
from ortet._util.validation import COUNT, SEVERAL, SHARE, check_text, may_be, must_be
from ortet.backends.base import RowChange
from ortet.errors import Invalid, OrtetError
from ortet.journal.conversation.superseded import Span, is_aside
from ortet.journal.events import Draft, Event
from ortet.journal.state.records import Episode, Fact
from ortet.journal.state.reducers import message_of
from ortet.journal.state.state import Mind
from ortet.memory.extraction.extracting import Extracted, Extractor, Turn
from ortet.memory.extraction.likeness import Likeness
from ortet.sessions.memory.believing import facts_of, scopes_of
from ortet.sessions.memory.episodes import turns_of
from ortet.sessions.memory.recall import line_of
from ortet.sessions.memory.shared_scopes import AGENT, name_of, users_of

if TYPE_CHECKING:
    from ortet.sessions.manager import Sessions
    from ortet.sessions.reader import View


class Consolidated(msgspec.Struct, frozen=True):
    """`facts` are new; `linked` are (text, id of the fact that says it already)."""

    agent: str
    episodes: int
    facts: list[Fact]
    linked: list[tuple[str, str]]
    dry_run: bool = False


class _Memory:
    """What a memory says, and what it says no more."""

    def __init__(self, mind: Mind) -> None:
        self.mind = mind
        self._given_up = {fact.id: fact for fact in mind.past if fact.text}

    @cached_property
    def alike(self) -> Likeness:
        return Likeness((fact.id, fact.text) for fact in facts_of(self.mind, ()).values())

    @cached_property
    def _past(self) -> Likeness:
        return Likeness((fact.id, fact.text) for fact in self._given_up.values())

    def gave_up(self, text: str, since: int) -> str:
        """The fact that said exactly this and was given up since then; "" when none was."""
        gone = (one.id for one in self._past.near(text) if one.exact)
        return next((one for one in gone if self._given_up[one].ended >= since), "")

    def says(self, text: str) -> str:
        same = self.alike.nearest(text)
        return same.id if same is not None and same.exact else ""


def consolidate(
    sessions: Sessions, agent: str, extractor: Extractor, *, dry_run: bool
) -> Consolidated:
    """See Hub.consolidate. Each episode is one transaction: killed, it goes on with the next."""
    users = {one for row in sessions.all() if row.agent == agent for one in users_of(row)}
    names = [name_of(agent, AGENT), *sorted(users)]
    memories: dict[str, _Memory] = {}
    report = Consolidated(agent, 0, [], [], dry_run)
    for name in names:
        here = _memory(sessions, name, memories)
        todo = [
            one
            for one in (_in_order(here.mind, agent) if here else ())
            if not _is_done(sessions, agent, one, extractor)
        ]
        for episode in todo:
            drafts = _learned(sessions, name, memories, episode, extractor=extractor, report=report)
            if not dry_run:
                done = RowChange(_kind(agent), f"{episode.id}/{extractor.name}", b"")
                sessions.scopes.publish(name, drafts, lease=None, rows=[done])
                reach("consolidate.episode")
        report = msgspec.structs.replace(report, episodes=report.episodes + len(todo))
    return report


def _learned(
    sessions: Sessions,
    name: str,
    memories: dict[str, _Memory],
    episode: Episode,
    *,
    extractor: Extractor,
    report: Consolidated,
) -> list[Draft]:
    """What an episode has for the memory that it was told to; the report is told, too."""
    here = memories[name]
    view = _session(sessions, episode)
    own = _Memory(view.mind) if view is not None else None
    # what is corrected for a user or a project is not to come back for everyone
    shared = scopes_of(view.row, view.mind) if view is not None else []
    others = (_memory(sessions, one, memories) for one in shared if one != name)
    beside = [here, *(one for one in others if one is not None)]
    turns, events = _turns(sessions, episode, view.mind.core.aside if view is not None else ())
    drafts: list[Draft] = []
    for found in _extracted(extractor, episode.summary, turns):
        id_ = _id(sessions, extractor, episode, found)
        if here.mind.facts.get(id_) or here.mind.past.get(id_):
            continue
        # who gave it up since then knew of this already
        told = own.gave_up(found.text, _said(found, events, episode)) if own else ""
        told = told or next(
            filter(None, (one.gave_up(found.text, episode.time) for one in beside)), ""
        )
        told = told or next(filter(None, (one.says(found.text) for one in beside)), "")
        if told:
            report.linked.append((found.text, told))
            continue
        same = here.alike.nearest(found.text)
        data = _data(id_, episode, found, events, extractor)
        if same is not None:
            data["like"] = same.id
            report.linked.append((found.text, same.id))
        here.alike.add(id_, found.text)
        drafts.append(Draft("fact", data, sessions.hub.author))
        report.facts.append(_fact(data, AGENT if name.startswith(f"{AGENT}:") else name))
    return drafts


def _extracted(extractor: Extractor, summary: str, turns: Sequence[Turn]) -> Iterator[Extracted]:
    """What was found, looked at: a model may have made it. Nothing is learned of an empty text."""
    found = extractor(summary, turns)
    must_be(SEVERAL, found=found)
    for one in found:
        if not isinstance(one, Extracted):
            raise Invalid(
                "bad_extracted",
                f"the extractor {extractor.name} gave {type(one).__name__}: give Extracted(text)",
            )
        check_text(text=one.text, about=one.about)
        must_be(SHARE, confidence=one.confidence)
        may_be(COUNT, turn=one.turn)
        if one.text.strip():
            yield one


def _session(sessions: Sessions, episode: Episode) -> View | None:
    """The one that it happened in; None when it was removed, or is another store's."""
    try:
        return sessions.get(episode.source.session) if episode.source is not None else None
    except OrtetError:
        return None


def _memory(sessions: Sessions, name: str, memories: dict[str, _Memory]) -> _Memory | None:
    if name not in memories and (known := sessions.scopes.now(name)) is not None:
        memories[name] = _Memory(known.mind)
    return memories.get(name)


def _said(found: Extracted, events: Sequence[Event], episode: Episode) -> int:
    """When: at the turn that it is from, where that is known."""
    if found.turn is not None and 0 <= found.turn < len(events):
        return events[found.turn].time
    return episode.time


def _kind(agent: str) -> str:
    return f"consolidated/{agent}"


def _is_done(sessions: Sessions, agent: str, episode: Episode, extractor: Extractor) -> bool:
    key = f"{episode.id}/{extractor.name}"
    return sessions.hub.catalog.row(_kind(agent), key) is not None


def _in_order(mind: Mind, agent: str) -> list[Episode]:
    """Those of the agent: a user has several."""
    found = (one for one in mind.episodes if one.participants[:1] in ([], [agent]))
    return sorted(found, key=lambda one: (one.time, one.id))


def _turns(
    sessions: Sessions, episode: Episode, aside: Sequence[Span]
) -> tuple[list[Turn], list[Event]]:
    """What was said in an episode and is not set aside, where its session is still there."""
    said = (one for one in _events(sessions, episode) if one.kind == "message" and not one.erased)
    here = (event for event in said if not is_aside(aside, event.seq))
    events = [event for event in here if turns_of([message_of(event)])]
    return [turn for event in events for turn in turns_of([message_of(event)])], events


def _events(sessions: Sessions, episode: Episode) -> Iterator[Event]:
    source = episode.source
    if source is None or not source.session or not episode.last:
        return
    try:
        line = line_of(sessions, sessions.roll.get(source.session))
    except OrtetError:  # it was removed: what is told of it stays
        return
    # after a restore it may go on elsewhere: then other events have these numbers
    upto = next((s.upto for s in line.path() if s.timeline == source.timeline), 0)
    if upto >= source.seq:
        yield from line.events(episode.first - 1, episode.last)


def _id(sessions: Sessions, extractor: Extractor, episode: Episode, found: Extracted) -> str:
    """The same of the same: what was said is a fact once, whoever asks and how often."""
    said = f"{extractor.name}\n{episode.id}\n{found.about}\n{found.text}"
    return sessions.hub.objects.hasher.oid(said.encode("utf-8", "surrogatepass")).hex()[:32]


def _data(
    id_: str, episode: Episode, found: Extracted, events: Sequence[Event], extractor: Extractor
) -> dict[str, Any]:
    source: dict[str, Any] = {}
    if episode.source is not None:
        source = msgspec.to_builtins(episode.source)
    if found.turn is not None and 0 <= found.turn < len(events):
        event = events[found.turn]
        source = {**source, "timeline": event.timeline, "seq": event.seq}
    data = {"id": id_, "text": found.text, "about": found.about, "confidence": found.confidence}
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

"""Consolidation: episodes of an agent become facts that all its sessions know. It only adds, says
where each is from, and does the same again for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ortet.backend.abc import RowChange
from ortet.errors import OrtetError
from ortet.journal.events import Draft, Event
from ortet.journal.folding import message_of
from ortet.journal.things import Episode, Fact
from ortet.memory.extracting import Extracted, Extractor, Turn
from ortet.memory.likeness import Likeness
from ortet.session.believing import facts_of
from ortet.session.episodes import turns_of
from ortet.session.remembering import line_of
from ortet.session.scopes import AGENT, Known, name_of
from ortet.store.faults import reach

if TYPE_CHECKING:
    from ortet.session.sessions import Sessions


class Consolidated(msgspec.Struct, frozen=True):
    """`facts` are new; `linked` are (text, id of the fact that says it already)."""

    agent: str
    episodes: int
    facts: list[Fact]
    linked: list[tuple[str, str]]
    dry_run: bool = False


def consolidate(
    sessions: Sessions, agent: str, extractor: Extractor, *, dry_run: bool
) -> Consolidated:
    """See Hub.consolidate. Each episode is one transaction: killed, it goes on with the next."""
    name = name_of(agent, AGENT)
    known = sessions.scopes.now(name)
    facts: list[Fact] = []
    linked: list[tuple[str, str]] = []
    if known is None:
        return Consolidated(agent, 0, facts, linked, dry_run)
    alike = Likeness((fact.id, fact.text) for fact in facts_of(known.mind, ()).values())
    given_up = {fact.id: fact for fact in known.mind.past if fact.text}
    past = Likeness((fact.id, fact.text) for fact in given_up.values())
    todo = [one for one in _in_order(known) if not _is_done(sessions, agent, one, extractor)]
    for episode in todo:
        turns, events = _turns(sessions, episode)
        drafts: list[Draft] = []
        for found in extractor(episode.summary, turns):
            id_ = _id(sessions, extractor, episode, found)
            if known.mind.facts.get(id_) or known.mind.past.get(id_):
                continue
            gone = (one.id for one in past.near(found.text) if one.exact)
            if late := next((one for one in gone if given_up[one].ended >= episode.time), ""):
                linked.append((found.text, late))  # who gave it up knew of this already
                continue
            same = alike.nearest(found.text)
            if same is not None and same.exact:
                linked.append((found.text, same.id))
                continue
            data = _data(id_, episode, found, events, extractor)
            if same is not None:
                data["like"] = same.id
                linked.append((found.text, same.id))
            alike.add(id_, found.text)
            drafts.append(Draft("fact", data, sessions.hub.author))
            facts.append(_fact(data))
        if not dry_run:
            done = RowChange(_kind(agent), f"{episode.id}/{extractor.name}", b"")
            sessions.scopes.publish(name, drafts, lease=None, rows=[done])
            reach("consolidate.episode")
    return Consolidated(agent, len(todo), facts, linked, dry_run)


def _kind(agent: str) -> str:
    return f"consolidated/{agent}"


def _is_done(sessions: Sessions, agent: str, episode: Episode, extractor: Extractor) -> bool:
    key = f"{episode.id}/{extractor.name}"
    return sessions.hub.catalog.row(_kind(agent), key) is not None


def _in_order(known: Known) -> list[Episode]:
    return sorted(known.mind.episodes, key=lambda one: (one.time, one.id))


def _turns(sessions: Sessions, episode: Episode) -> tuple[list[Turn], list[Event]]:
    """What was said in an episode, where its session is still there."""
    events = [
        event
        for event in _events(sessions, episode)
        if event.kind == "message" and not event.erased and turns_of([message_of(event)])
    ]
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


def _fact(data: dict[str, Any]) -> Fact:
    return Fact(
        id=data["id"],
        text=data["text"],
        about=data["about"],
        confidence=data["confidence"],
        scope=AGENT,
        like=data.get("like", ""),
    )

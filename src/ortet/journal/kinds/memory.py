"""Event kinds of memory: facts, lessons and episodes. A session can share all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ortet.journal.conversation.text import clip, one_line, text_of
from ortet.journal.events import Event
from ortet.journal.kinds.event_kind import (
    LONG_CHARS,
    BriefingItems,
    BriefingSectionSpec,
    EventData,
    EventKind,
    default_line,
    progress_text,
    short_id,
)
from ortet.journal.state.records import Fact, episode_of, fact_of
from ortet.journal.state.state import SessionState


class _SourceData(msgspec.Struct):
    timeline: str = ""
    seq: int = 0
    session: str = ""


class _FactData(msgspec.Struct):
    id: str = ""
    text: str = ""
    about: str = ""
    scope: str = ""
    confidence: float = 1.0
    since: int = 0
    until: int = 0
    source: _SourceData | None = None
    supersedes: str = ""
    like: str = ""
    why: str = ""


class _EpisodeData(msgspec.Struct):
    id: str = ""
    summary: str = ""
    outcome: str = ""
    first: int = 0
    last: int = 0
    participants: list[str] = []
    importance: float = 0.5
    cause: str = ""
    time: int = 0
    began: int = 0
    session: str = ""
    source: _SourceData | None = None


# reducers


def _fold_fact(state: SessionState, event: Event, data: EventData) -> None:
    if data.get("gone"):
        if "why" in data:
            _end_fact(state, data["id"], event, why=data["why"])
        else:  # as releases without memory wrote it
            state.facts.drop(data["id"])
        return
    fact = fact_of(event)
    state.facts.set(fact.id, fact)
    if fact.supersedes:
        _end_fact(state, fact.supersedes, event, by=fact.id)


def _end_fact(
    state: SessionState, fact_id: str, event: Event, *, by: str = "", why: str = ""
) -> None:
    """Retract a fact. A fact of a shared memory, which is not in this state, is marked as ended."""
    fact = state.facts.get(fact_id) or state.past.get(fact_id) or Fact(fact_id, "", seq=event.seq)
    state.past.set(fact_id, msgspec.structs.replace(fact, ended=event.time, ended_by=by, why=why))
    if state.facts.get(fact_id) is not None:
        state.facts.drop(fact_id)


def _fold_episode(state: SessionState, event: Event, data: EventData) -> None:
    del data
    episode = episode_of(event)
    state.episodes.set(episode.id, episode)


# lines


def _fact_line(data: EventData) -> str:
    return f"forgot {short_id(data)}" if data.get("gone") else default_line(data)


def _fact_progress(data: EventData) -> str:
    return "" if data.get("gone") else f"found: {progress_text(text_of(data.get('text', '')))}"


def _lesson_progress(data: EventData) -> str:
    return f"learned: {progress_text(text_of(data.get('text', '')))}"


def _summary(data: EventData) -> str:
    return str(data.get("summary", ""))


# briefing


def _facts(items: BriefingItems) -> Sequence[Fact]:
    return items.facts


def _lessons(items: BriefingItems) -> Sequence[Fact]:
    return items.lessons


def _describe_fact(fact: Fact) -> tuple[str, Any]:
    about = f"{fact.about}: " if fact.about else ""
    data = {"id": fact.id, "text": clip(fact.text, LONG_CHARS), "about": fact.about}
    return about + one_line(fact.text, LONG_CHARS), data


KINDS = (
    EventKind(
        name="fact",
        schema=_FactData,
        reducer=_fold_fact,
        shareable=True,
        survives_rewind=True,
        indexed=True,
        line=_fact_line,
        group="known",
        progress=_fact_progress,
        briefing=(BriefingSectionSpec(120, "facts", "Facts", 30, _facts, _describe_fact),),
    ),
    EventKind(
        name="lesson",
        schema=_FactData,
        reducer=_fold_fact,
        shareable=True,
        survives_rewind=True,
        indexed=True,
        importance=0.15,
        line=_fact_line,
        group="known",
        progress=_lesson_progress,
        briefing=(BriefingSectionSpec(70, "lessons", "Lessons", 50, _lessons, _describe_fact),),
    ),
    EventKind(
        name="episode",
        automatic=True,
        schema=_EpisodeData,
        reducer=_fold_episode,
        shareable=True,
        survives_rewind=True,
        indexed=True,
        words=_summary,
        in_episodes=False,
        quotes_messages=True,
        line=_summary,
        group="known",
    ),
)

"""Events as documents of the index: what is found again, and what is believed no longer."""

from __future__ import annotations

from collections.abc import Iterable

from ortet.journal.conversation.text import text_of
from ortet.journal.events import Event
from ortet.journal.state.reducers import episode_of, fact_of, message_of
from ortet.memory.records import FactEnd, MemoryDocument

INDEXED_KINDS = ("message", "fact", "lesson", "episode")
"""Kinds of events that are found again."""

_RULES = ("system", "developer")


def document(event: Event) -> MemoryDocument | None:
    """An event as it is found again; None for what is not remembered this way."""
    data, seq, time = event.data, event.seq, event.time
    if event.kind == "message":
        message = message_of(event)
        text = text_of(message.content)
        if not text.strip() or message.role in _RULES or message.extra.get("synthetic"):
            return None
        name = message.extra.get("name") or message.extra.get("user") or ""
        speaker = name if isinstance(name, str) else ""
        return MemoryDocument(seq, "working", text, time, speaker=speaker)
    if event.kind in ("fact", "lesson") and not data.get("gone"):
        fact = fact_of(event)
        return MemoryDocument(
            seq,
            "semantic",
            fact.text,
            time,
            key=fact.id,
            about=fact.about,
            importance=fact.confidence,
            since=fact.since,
            until=fact.until,
            scope=fact.scope,
        )
    if event.kind == "episode":
        episode = episode_of(event)
        return MemoryDocument(
            seq,
            "episodic",
            episode.summary,
            time,
            key=episode.id,
            about=episode.outcome,
            importance=episode.importance,
            scope=str(data.get("scope", "")),
        )
    return None


def ended_facts(event: Event) -> Iterable[FactEnd]:
    """What is believed no longer since an event."""
    if event.kind not in ("fact", "lesson"):
        return ()
    if event.data.get("gone"):
        return (FactEnd(event.seq, str(event.data["id"]), event.time),)
    if before := event.data.get("supersedes"):
        return (FactEnd(event.seq, str(before), event.time),)
    return ()


def words_of(event: Event) -> str:
    """What a message, a fact or an episode says, exactly."""
    if event.kind == "message":
        return text_of(event.data.get("content"))
    return str(event.data.get("summary" if event.kind == "episode" else "text", ""))

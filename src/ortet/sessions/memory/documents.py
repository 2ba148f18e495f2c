"""Events as documents of the memory index, and the ends of facts."""

from __future__ import annotations

from collections.abc import Iterable

from ortet.journal.conversation.text import text_of
from ortet.journal.events import Event
from ortet.journal.state.reducers import episode_of, fact_of, message_of
from ortet.memory.records import FactEnd, MemoryDocument

INDEXED_KINDS = ("message", "fact", "lesson", "episode")
"""Kinds of events that are indexed."""

_RULES = ("system", "developer")


def document(event: Event) -> MemoryDocument | None:
    """Return the document of an event, or None if the event is not indexed."""
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
    """Return the facts that an event retracts or supersedes."""
    if event.kind not in ("fact", "lesson"):
        return ()
    if event.data.get("gone"):
        return (FactEnd(event.seq, str(event.data["id"]), event.time),)
    if before := event.data.get("supersedes"):
        return (FactEnd(event.seq, str(before), event.time),)
    return ()


def words_of(event: Event) -> str:
    """Return the exact text of a message, fact or episode."""
    if event.kind == "message":
        return text_of(event.data.get("content"))
    return str(event.data.get("summary" if event.kind == "episode" else "text", ""))

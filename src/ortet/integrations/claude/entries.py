"""Converts lines of a Claude Code transcript to journal events and back.

User and assistant messages become messages of the session. All other lines are stored unchanged.
"""

from __future__ import annotations

import json
from typing import Any

from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.journal.conversation.text import text_of
from ortet.journal.events import Event, is_plain
from ortet.sessions.writing.large_events import EventInput, full_data

TranscriptEntry = dict[str, Any]

ENTRY = "claude.entry"
"""Event kind of a line that is not a message."""

_EXTRA_KEY = "claude"
"""Key in a message's `extra` that holds the rest of its line."""

_JSON_EXTRA_KEY = "claude-json"
"""Key in a message's `extra` that holds a line which only JSON can represent."""


def to_journal_event(entry: TranscriptEntry, *, is_subagent: bool) -> EventInput:
    """Convert a transcript line to an event.

    Args:
        entry: the line.
        is_subagent: the line is from a subagent's transcript, where every line is a side chain.
    """
    if not isinstance(entry, dict):
        raise Invalid("not_json", f"{type(entry).__name__} is no line of a transcript: give a dict")
    plain = is_plain(entry)
    if not _is_message(entry, is_subagent=is_subagent):
        return EventInput(ENTRY, {"entry": entry} if plain else {"json": _as_json(entry)})
    message = entry["message"]
    role, content = message["role"], message["content"]
    if not plain:
        shown = text_of(content).encode("utf-8", "replace").decode()
        return EventInput(
            "message", {"role": role, "content": shown, "extra": {_JSON_EXTRA_KEY: _as_json(entry)}}
        )
    rest = {key: value for key, value in entry.items() if key not in ("type", "message")}
    if left := {key: value for key, value in message.items() if key not in ("role", "content")}:
        rest["message"] = left
    return EventInput("message", {"role": role, "content": content, "extra": {_EXTRA_KEY: rest}})


def entry_of(hub: Hub, event: Event) -> TranscriptEntry | None:
    """Return the transcript line of an event, or None if the event is not a line."""
    if event.erased or event.kind not in ("message", ENTRY):
        return None
    data = full_data(hub.store, event)
    if event.kind == ENTRY:
        entry: TranscriptEntry = json.loads(data["json"]) if "json" in data else data["entry"]
        return entry
    extra = data.get("extra", {})
    if _JSON_EXTRA_KEY in extra:
        told: TranscriptEntry = json.loads(extra[_JSON_EXTRA_KEY])
        return told
    if _EXTRA_KEY not in extra:
        return None
    rest = dict(extra[_EXTRA_KEY])
    message = {"role": data["role"], "content": data["content"], **rest.pop("message", {})}
    return {"type": data["role"], "message": message, **rest}


def is_prompt(entry: TranscriptEntry) -> bool:
    """Return True if a person started a turn with this line."""
    if entry.get("type") != "user" or not isinstance(entry.get("message"), dict):
        return False
    if any(entry.get(mark) is True for mark in ("isMeta", "isCompactSummary", "isSidechain")):
        return False
    return not results_in(entry) and not prompt_of(entry).startswith("[Request interrupted")


def results_in(entry: TranscriptEntry) -> set[str]:
    """Return the ids of the tool calls whose results this line has."""
    return {str(part.get("tool_use_id")) for part in _parts(entry, "tool_result")}


def calls_in(entry: TranscriptEntry) -> set[str]:
    """Return the ids of the tool calls that this line makes."""
    return {str(part.get("id")) for part in _parts(entry, "tool_use")}


def _parts(entry: TranscriptEntry, kind: str) -> list[dict[str, Any]]:
    content = entry["message"].get("content") if isinstance(entry.get("message"), dict) else None
    parts = content if isinstance(content, list) else []
    return [part for part in parts if isinstance(part, dict) and part.get("type") == kind]


def prompt_of(entry: TranscriptEntry) -> str:
    return text_of(entry["message"].get("content"))


def _is_message(entry: TranscriptEntry, *, is_subagent: bool) -> bool:
    kind, message = entry.get("type"), entry.get("message")
    if kind not in ("user", "assistant") or not isinstance(message, dict):
        return False
    if entry.get("isSidechain") is True and not is_subagent:
        return False
    return message.get("role") == kind and isinstance(message.get("content"), str | list)


def _as_json(entry: TranscriptEntry) -> str:
    try:
        return json.dumps(entry)
    except (TypeError, ValueError, RecursionError) as error:
        named = entry.get("uuid") or entry.get("type")
        raise Invalid(
            "not_json", f"line {named!r} of the transcript cannot be kept ({error}): give JSON"
        ) from error

"""The transcript of a Claude Code session: its lines, and what the SDK lists of it.

User and assistant messages become messages of the session. All other lines are stored unchanged.
Key, modification time and summary are read without reading the whole transcript.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from claude_agent_sdk import SessionKey, SessionStoreEntry, fold_session_summary
from claude_agent_sdk.types import SessionSummaryEntry

from ortet.errors import Invalid
from ortet.hub.hub import Hub, hub_of
from ortet.integrations._shared.session_pool import session_name
from ortet.journal.conversation.text import text_of
from ortet.journal.event_log import EventLog
from ortet.journal.events import Event, is_plain
from ortet.sessions.reader import SessionReader
from ortet.sessions.writing.large_events import EventInput, full_data

# Lines of a transcript as journal events.

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
        decoded: TranscriptEntry = json.loads(extra[_JSON_EXTRA_KEY])
        return decoded
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


# Whole transcripts, and their listing.

TRANSCRIPT_EVENT = "claude.transcript"
"""Event kind with the key of a transcript. A fork adds one with its own key."""
LISTING_EVENT = "claude.listing"
"""Event kind that ends each batch: the SDK's summary of the transcript up to there."""

_FIRST_PAGE_EVENTS = 16


class TranscriptListing(NamedTuple):
    """The SDK's summary of a transcript. `mtime` is in milliseconds since 1970."""

    key: SessionKey
    mtime: int
    data: dict[str, Any]

    @property
    def summary(self) -> SessionSummaryEntry:
        return {"session_id": self.key["session_id"], "mtime": self.mtime, "data": self.data}


def transcript_session_name(key: SessionKey) -> str:
    """Return the session name of a transcript."""
    if not isinstance(key, dict):
        raise Invalid("bad_key", f"{key!r} is no key of a transcript: give project_key, session_id")
    parts = ["project_key", "session_id", *(["subpath"] if "subpath" in key else [])]
    ids = [key.get(part) for part in parts]
    if not all(isinstance(id_, str) and id_ and is_plain(id_) for id_ in ids):
        raise Invalid("bad_key", f"{key!r} is no key of a transcript: each part is some text")
    return session_name(*(str(id_) for id_ in ids))


def make_transcript_event(key: SessionKey, **more: Any) -> EventInput:
    return EventInput(TRANSCRIPT_EVENT, {"key": dict(key), **more})


def listing(key: SessionKey, data: dict[str, Any]) -> EventInput:
    fields = {"data": data} if is_plain(data) else {"json": json.dumps(data)}
    return EventInput(LISTING_EVENT, {"key": dict(key), **fields})


def data_of(hub: Hub, event: Event) -> dict[str, Any]:
    """Return the summary that a listing event holds."""
    fields = full_data(hub.store, event)
    data: dict[str, Any] = (
        json.loads(fields["json"]) if "json" in fields else fields.get("data", {})
    )
    return data


def fold_listing(
    key: SessionKey, data: dict[str, Any], entries: list[TranscriptEntry]
) -> dict[str, Any]:
    """Return the summary `data` extended by these lines."""
    if "subpath" in key:
        return {}
    before: SessionSummaryEntry = {"session_id": key["session_id"], "mtime": 0, "data": data}
    return fold_session_summary(before, key, cast(list[SessionStoreEntry], entries))["data"]


def read_listing(hub: Hub, log: EventLog) -> TranscriptListing | None:
    """Read the summary of a transcript from its last events; None if it is not one."""
    since: list[TranscriptEntry] = []
    mtime = 0
    for event in _newest_first(log):
        if event.kind in (TRANSCRIPT_EVENT, LISTING_EVENT) and not event.erased:
            key = cast(SessionKey, full_data(hub.store, event)["key"])
            folded = fold_listing(key, data_of(hub, event), since[::-1])
            return TranscriptListing(key, mtime or event.time // 1_000_000, folded)
        entry = entry_of(hub, event)
        if entry is not None:
            since.append(entry)
            mtime = mtime or event.time // 1_000_000
    return None


class LoadedTranscript(NamedTuple):
    """A complete transcript: each line with the number of its event."""

    key: SessionKey
    lines: list[tuple[int, TranscriptEntry]]


def read_transcript(view: SessionReader) -> LoadedTranscript | None:
    """Read all lines of a transcript; None if the session is not a transcript."""
    key: SessionKey | None = None
    lines: list[tuple[int, TranscriptEntry]] = []
    ids: set[str] = set()
    for event in view.events():
        if event.kind == TRANSCRIPT_EVENT and not event.erased:
            key = cast(SessionKey, event.data["key"])
            ids.add(key["session_id"])
        elif event.kind in ("message", ENTRY) and not event.waiting:
            entry = entry_of(hub_of(view), event)
            if entry is not None:
                lines.append((event.seq, entry))
    if key is None:
        return None
    if len(ids) > 1:
        lines = [(seq, _with_session_id(entry, ids, key["session_id"])) for seq, entry in lines]
    return LoadedTranscript(key, lines)


def _with_session_id(entry: TranscriptEntry, ids: set[str], session_id: str) -> TranscriptEntry:
    """Replace the session id of a line that was copied by a fork."""
    entry_id = entry.get("sessionId")
    return (
        {**entry, "sessionId": session_id} if entry_id in ids and entry_id != session_id else entry
    )


def _newest_first(log: EventLog) -> Iterator[Event]:
    """Yield the events from the newest to the oldest, in pages that grow."""
    upto, page = log.tip().seq, _FIRST_PAGE_EVENTS
    while upto > 0:
        low = max(0, upto - page)
        yield from reversed(list(log.events(low, upto)))
        upto, page = low, page * 4

"""Reads key, modification time and summary of a transcript without reading all of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from claude_agent_sdk import SessionKey, SessionStoreEntry, fold_session_summary
from claude_agent_sdk.types import SessionSummaryEntry

from ortet.errors import Invalid
from ortet.hub.hub import Hub, hub_of
from ortet.integrations._shared.session_pool import session_name
from ortet.integrations.claude.entries import ENTRY, TranscriptEntry, entry_of
from ortet.journal.event_log import EventLog
from ortet.journal.events import Event, is_plain
from ortet.sessions.reader import SessionReader
from ortet.sessions.writing.large_events import EventInput, full_data

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
    kept = {"data": data} if is_plain(data) else {"json": json.dumps(data)}
    return EventInput(LISTING_EVENT, {"key": dict(key), **kept})


def data_of(hub: Hub, event: Event) -> dict[str, Any]:
    """Return the summary that a listing event holds."""
    told = full_data(hub.store, event)
    data: dict[str, Any] = json.loads(told["json"]) if "json" in told else told.get("data", {})
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
            told = fold_listing(key, data_of(hub, event), since[::-1])
            return TranscriptListing(key, mtime or event.time // 1_000_000, told)
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
    said = entry.get("sessionId")
    return {**entry, "sessionId": session_id} if said in ids and said != session_id else entry


def _newest_first(log: EventLog) -> Iterator[Event]:
    """Yield the events from the newest to the oldest, in pages that grow."""
    upto, page = log.tip().seq, _FIRST_PAGE_EVENTS
    while upto > 0:
        low = max(0, upto - page)
        yield from reversed(list(log.events(low, upto)))
        upto, page = low, page * 4

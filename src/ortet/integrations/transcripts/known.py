"""Reads from the journal which lines of a transcript a session already has.

Nothing else records this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from ortet.integrations.transcripts.batch import key_of
from ortet.integrations.transcripts.tool_calls import LoadPendingEffects
from ortet.journal.events import Event
from ortet.sessions.reader import SessionReader

_OPEN = ("begun", "unsettled")


class ImportProgress(msgspec.Struct, frozen=True):
    """The lines that a session has, each with its first and last event."""

    session: str = ""
    lines: dict[str, tuple[int, int]] = {}
    around: dict[str, Any] = {}
    start: int = 0  # last event before the first line
    last: int = 0  # last event of all
    erased: bool = False  # Some events were erased, so their lines are unknown.
    ends_erased: bool = False


class LineEvent(NamedTuple):
    """The fields of an event that the import needs."""

    seq: int
    key: str
    is_automatic: bool
    erased: bool
    context: dict[str, Any]


class LineEventCache:
    """Reads each timeline once, however many forks share it."""

    def __init__(self) -> None:
        self._read: dict[str, list[LineEvent]] = {}

    def read_events(self, view: SessionReader) -> Iterator[LineEvent]:
        spans = view.event_log.timeline_spans()
        if not spans or spans[0].after:  # The earlier events were written on another host.
            yield from map(_line_event, view.event_log.events())
            return
        for span in spans:
            known = self._read.setdefault(span.timeline, [])
            reached = span.after + len(known)
            if reached < span.upto:
                known += map(_line_event, view.event_log.events(reached, span.upto))
            yield from islice(known, span.upto - span.after)


def _line_event(event: Event) -> LineEvent:
    data, around = event.data, dict[str, Any]()
    if event.kind.endswith(".context"):
        around = {name: one for name, one in data.items() if name != "line"}
    return LineEvent(event.seq, key_of(data), _is_automatic(event), event.erased, around)


def read_progress(view: SessionReader, cache: LineEventCache | None = None) -> ImportProgress:
    """Read from the journal what was imported."""
    lines: dict[str, tuple[int, int]] = {}
    around: dict[str, Any] = {}
    start, now, last = 0, "", 0
    erased = ends_erased = False
    view.events(0, 0)  # In an open session this makes pending events durable.
    for note in (cache or LineEventCache()).read_events(view):
        last = note.seq
        erased, ends_erased = erased or note.erased, ends_erased or note.erased
        if note.key:
            now, ends_erased = note.key, False
            lines[now] = (note.seq, note.seq)
        elif now and not note.is_automatic:
            lines[now] = (lines[now][0], note.seq)
        elif not now:
            start = note.seq
        around |= note.context
    return ImportProgress(view.id, lines, around, start, last, erased, ends_erased)


def _is_automatic(event: Event) -> bool:
    """Return True for an event that a session writes automatically between two lines."""
    return event.kind in ("lifecycle", "warning", "environment", "compaction", "episode")


def pending_effects(session: SessionReader) -> LoadPendingEffects:
    def find() -> dict[str, Mapping[str, Any]]:
        begun = [effect.begun for effect in session.state.effects if effect.state in _OPEN]
        events = [event for seq in begun for event in session.events(seq - 1, seq)]
        return {str(event.data.get("call", "")): event.data for event in events}

    return find

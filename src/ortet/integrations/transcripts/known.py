"""What a session has of a transcript by now: its journal, and nothing beside it, says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from ortet.integrations.transcripts.batch import key_of
from ortet.integrations.transcripts.tool_calls import Pending
from ortet.journal.events import Event
from ortet.sessions.reader import View

_OPEN = ("begun", "unsettled")


class Known(msgspec.Struct, frozen=True):
    """What a session has of a transcript: of each line its first and last event."""

    session: str = ""
    lines: dict[str, tuple[int, int]] = {}
    around: dict[str, Any] = {}
    start: int = 0  # the last event before all of them
    last: int = 0  # and the last of all
    erased: bool = False  # some of them are, and nobody knows any more of which lines they were
    ends_erased: bool = False


class Note(NamedTuple):
    """What has to be known of an event."""

    seq: int
    key: str
    ours: bool
    erased: bool
    around: dict[str, Any]


class Notes:
    """Reads each timeline once, however many forks began on it."""

    def __init__(self) -> None:
        self._read: dict[str, list[Note]] = {}

    def of(self, view: View) -> Iterator[Note]:
        spans = view.line.path()
        if not spans or spans[0].after:  # what came before is another host's
            yield from map(_note, view.line.events())
            return
        for span in spans:
            known = self._read.setdefault(span.timeline, [])
            reached = span.after + len(known)
            if reached < span.upto:
                known += map(_note, view.line.events(reached, span.upto))
            yield from islice(known, span.upto - span.after)


def _note(event: Event) -> Note:
    data, around = event.data, dict[str, Any]()
    if event.kind.endswith(".context"):
        around = {name: one for name, one in data.items() if name != "line"}
    return Note(event.seq, key_of(data), _is_ours(event), event.erased, around)


def known_of(view: View, notes: Notes | None = None) -> Known:
    """Read from its journal: that, and nothing beside it, says what was taken in."""
    lines: dict[str, tuple[int, int]] = {}
    around: dict[str, Any] = {}
    start, now, last = 0, "", 0
    erased = ends_erased = False
    view.events(0, 0)  # an open session makes durable what waits
    for note in (notes or Notes()).of(view):
        last = note.seq
        erased, ends_erased = erased or note.erased, ends_erased or note.erased
        if note.key:
            now, ends_erased = note.key, False
            lines[now] = (note.seq, note.seq)
        elif now and not note.ours:
            lines[now] = (lines[now][0], note.seq)
        elif not now:
            start = note.seq
        around |= note.around
    return Known(view.id, lines, around, start, last, erased, ends_erased)


def _is_ours(event: Event) -> bool:
    """What a session does by itself between two lines."""
    return event.kind in ("lifecycle", "warning", "environment", "compaction", "episode")


def pending(session: View) -> Pending:
    def find() -> dict[str, Mapping[str, Any]]:
        begun = [effect.begun for effect in session.mind.effects if effect.state in _OPEN]
        events = [event for seq in begun for event in session.events(seq - 1, seq)]
        return {str(event.data.get("call", "")): event.data for event in events}

    return find

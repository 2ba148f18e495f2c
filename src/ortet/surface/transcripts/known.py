"""What a session has of a transcript by now: its journal, and nothing beside it, says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ortet.journal.events import Event
from ortet.session.view import View
from ortet.surface.transcripts.batch import key_of
from ortet.surface.transcripts.doings import Pending

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


def known_of(view: View) -> Known:
    """Read from its journal: that, and nothing beside it, says what was taken in."""
    lines: dict[str, tuple[int, int]] = {}
    around: dict[str, Any] = {}
    start, now, last = 0, "", 0
    erased = ends_erased = False
    for event in view.events():
        if event.waiting:
            continue
        last = event.seq
        erased, ends_erased = erased or event.erased, ends_erased or event.erased
        if key := key_of(event.data):
            now, ends_erased = key, False
            lines[now] = (event.seq, event.seq)
        elif now and not _is_ours(event):
            lines[now] = (lines[now][0], event.seq)
        elif not now:
            start = event.seq
        if event.kind.endswith(".context"):
            around |= {name: one for name, one in event.data.items() if name != "line"}
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

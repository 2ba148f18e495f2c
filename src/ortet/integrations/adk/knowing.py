"""What a session of ADK adds up to: its ids, its state, and up to which event."""

from __future__ import annotations

import copy
from typing import Any

from ortet.hub.hub import Hub
from ortet.integrations.adk.events import data_of, had
from ortet.integrations.adk.state import split
from ortet.journal.events import Event
from ortet.sessions.reader import View
from ortet.sessions.writing.telling import whole

BEGUN = "adk.session"
"""The first event of a session of ADK; of a fork, the first of its own."""


class Known:
    """As of event `seq` of a timeline."""

    def __init__(self, timeline: str) -> None:
        self.timeline = timeline
        self.seq = 0
        self.ids: tuple[str, str, str] = ("", "", "")
        self.begun = False
        self.updated = 0.0
        self.marker = ""
        self.last = ""  # id of the last event
        self.events: dict[str, int] = {}  # by id
        self.seqs: list[int] = []
        self._state: dict[str, Any] = {}

    def state_now(self) -> dict[str, Any]:
        """The session's own, without prefixes; the caller's to change."""
        return copy.deepcopy(self._state)

    def take(self, hub: Hub, event: Event) -> None:
        if event.kind == BEGUN and not event.erased:
            data = whole(hub, event)
            self.ids, self.begun = (data["app"], data["user"], data["session"]), True
            if "forked_from" not in data:
                self._state = had("state", data)
                self.updated = data["time"]
        else:
            data_ = data_of(hub, event)
            if data_ is None:
                return
            self._state.update(split(data_.get("actions", {}).get("state_delta", {})).session)
            self.updated, self.last = data_["timestamp"], data_["id"]
            self.events[self.last] = event.seq
            self.seqs.append(event.seq)
        self.marker = f"{event.timeline}:{event.seq}"


def caught_up(known: Known | None, view: View) -> Known:
    """With what is new, also by other processes; anew where the session went elsewhere."""
    if known is None or known.timeline != view.row.timeline:
        known = Known(view.row.timeline)
    upto = view.mind.core.events
    if known.seq > upto:
        known = Known(view.row.timeline)
    if known.seq < upto:
        for event in view.events(known.seq, upto):
            known.take(view.hub, event)
        known.seq = upto
    return known

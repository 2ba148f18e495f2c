"""The folded state of an ADK session: ids, state and last applied event."""

from __future__ import annotations

import copy
from typing import Any

from ortet.hub.hub import Hub
from ortet.integrations.adk.events import data_of, decode_field
from ortet.integrations.adk.state import split_state
from ortet.journal.events import Event
from ortet.sessions.reader import SessionReader
from ortet.sessions.writing.telling import full_data

SESSION_EVENT = "adk.session"
"""First event of an ADK session. A fork adds one with its own ids."""


class AdkSessionState:
    """The state of an ADK session as of event `seq` of a timeline."""

    def __init__(self, timeline: str) -> None:
        self.timeline = timeline
        self.seq = 0
        self.ids: tuple[str, str, str] = ("", "", "")
        self.has_begun = False
        self.updated = 0.0
        self.marker = ""
        self.last_event_id = ""
        self.seq_by_event_id: dict[str, int] = {}
        self.seqs: list[int] = []
        self._state: dict[str, Any] = {}

    def copy_state(self) -> dict[str, Any]:
        """Return a copy of the session's own state, without prefixed keys."""
        return copy.deepcopy(self._state)

    def apply(self, hub: Hub, event: Event) -> None:
        if event.kind == SESSION_EVENT and not event.erased:
            data = full_data(hub, event)
            self.ids, self.has_begun = (data["app"], data["user"], data["session"]), True
            if "forked_from" not in data:
                self._state = decode_field("state", data)
                self.updated = data["time"]
        else:
            data_ = data_of(hub, event)
            if data_ is None:
                return
            self._state.update(split_state(data_.get("actions", {}).get("state_delta", {})).session)
            self.updated, self.last_event_id = data_["timestamp"], data_["id"]
            self.seq_by_event_id[self.last_event_id] = event.seq
            self.seqs.append(event.seq)
        self.marker = f"{event.timeline}:{event.seq}"


def catch_up(state: AdkSessionState | None, view: SessionReader) -> AdkSessionState:
    """Apply new events, also of other processes.

    Start again if the session changed its timeline.
    """
    if state is None or state.timeline != view.row.timeline:
        state = AdkSessionState(view.row.timeline)
    upto = view.state.core.events
    if state.seq > upto:
        state = AdkSessionState(view.row.timeline)
    if state.seq < upto:
        for event in view.events(state.seq, upto):
            state.apply(view.hub, event)
        state.seq = upto
    return state

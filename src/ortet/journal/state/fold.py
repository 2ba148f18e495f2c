"""Fold events into a session state.

It is a module of its own because it asks the event kinds for their reducers, and these change
`state.SessionState`. Events of kinds from a later release are kept and change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from ortet.journal.events import Event
from ortet.journal.kinds.registry import EVENT_KINDS
from ortet.journal.state.state import SessionState

_HASH_PREFIX_BYTES = 16
"""Bytes of an event hash that identify the event."""


def fold(state: SessionState, events: Iterable[Event]) -> SessionState:
    """Apply events to a state, in order, and return the same state."""
    last: Event | None = None
    try:
        for event in events:
            kind = EVENT_KINDS.get(event.kind)
            if kind is not None and not event.erased and (change := kind.reducer) is not None:
                try:
                    change(state, event, event.data)
                    if kind.shareable and (scope := event.data.get("scope")):
                        state.change_core(shared={**state.core.shared, scope: event.seq})
                except (KeyError, TypeError, ValueError):
                    if event.version <= 1:
                        raise  # an unknown later schema changes nothing and is kept
            last = event
    finally:
        if last is not None:
            state.change_core(events=last.seq, last=last.hash[:_HASH_PREFIX_BYTES])
    return state

"""All event kinds by name, the check of event data, and the fold of events into a state.

To add a kind, add its EventKind to `KINDS` in the module of its family. It is a module of its own
because it imports every family of kinds. Events of kinds from a later release are kept and change
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.errors import Invalid
from ortet.journal.events import Event
from ortet.journal.kinds import (
    actions,
    budget,
    conversation,
    external_state,
    lifecycle,
    memory,
    plan,
)
from ortet.journal.kinds.event_kind import CUSTOM_KIND, UNKNOWN_KIND, EventData, EventKind
from ortet.journal.state.state import SessionState

_FAMILIES = (conversation, plan, memory, actions, budget, external_state, lifecycle)

EVENT_KINDS: dict[str, EventKind] = {
    kind.name: kind for family in _FAMILIES for kind in family.KINDS
}
"""Record of every kind that this release writes."""


def kind_of(name: str) -> EventKind:
    """Return the record of a kind. Kinds of programs and of later releases have a default one."""
    kind = EVENT_KINDS.get(name)
    if kind is not None:
        return kind
    return CUSTOM_KIND if "." in name else UNKNOWN_KIND


def check_data(kind: str, data: EventData) -> None:
    """Raise Invalid("bad_value") if a field does not have the type that readers rely on."""
    known_kind = EVENT_KINDS.get(kind)
    if known_kind is not None and known_kind.schema is not None:
        try:
            msgspec.convert(data, thread_safe_struct(known_kind.schema))
        except msgspec.ValidationError as error:
            raise Invalid(
                "bad_value", f"this is no {kind} ({error}): correct the value and repeat"
            ) from error


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

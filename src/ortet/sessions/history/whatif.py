"""Forks of a session at one of its events, unchanged or with that event replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortet.errors import Invalid, NotFound
from ortet.journal.events import Draft, Event
from ortet.sessions.history.forking import (
    ForkingSessions,
    ForkParent,
    S,
    fork_files,
    fork_state_only,
)
from ortet.sessions.history.rewind import commit_at
from ortet.sessions.table import SCRATCH_FILES
from ortet.store.sweep_retry import retry_on_sweep

if TYPE_CHECKING:
    from ortet.sessions.context import SessionContext


@retry_on_sweep
def whatif(
    sessions: ForkingSessions[S],
    /,
    parent: ForkParent,
    at: int,
    *,
    machine: bool = True,
    **change: Any,
) -> S:
    """Create a session in which event `at` had another content; see `Session.whatif`.

    The replaced event is the first event of the new session, and it is marked. The files are those
    of the last commit before. The original session does not change.
    """
    view, store = parent.context, sessions.store
    event, draft = _changed(view, at, change)
    with store.writing():
        point = commit_at(sessions.services, view.row, view.event_log, event.seq - 1)
        before = next(iter(view.event_log.rows(event.seq - 2, event.seq - 1)))
        has_files = view.row.has_files and (
            view.row.files == SCRATCH_FILES or bool(store.history.state(point).machine)
        )
        fork = fork_files if machine and has_files else fork_state_only
        (session,) = fork(
            sessions, parent, point, 1, first=(sessions.services.chain.tip(before), draft)
        )
    session.internals.close_dangling_effects()
    return session


def _changed(view: SessionContext, at: int, change: dict[str, Any]) -> tuple[Event, Draft]:
    """Return the event to replace and its replacement."""
    if len(change) != 1 or not set(change) <= {"message", "result", "error"}:
        given = ", ".join(sorted(change)) or "nothing"
        raise Invalid(
            "bad_change", f"one change is needed: message=, result= or error=, not {given}"
        )
    ((what, value),) = change.items()
    if isinstance(at, bool) or not isinstance(at, int) or at < 1:
        raise Invalid("bad_seq", f"event {at!r}: give the number of an event, from 1")
    event = _event(view, at) if what == "message" else _end_of(view, _event(view, at))
    data = {**event.data, "whatif": {"session": view.id, "seq": event.seq}}
    if what == "message":
        if event.kind != "message":
            raise _no_such(event, "message")
        return event, Draft("message", {**data, "content": value}, event.actor)
    for key in ("outcome", "error", "code", "synthetic"):
        data.pop(key, None)
    if what == "error":
        return event, Draft("ended", {**data, "state": "failed", "error": str(value)}, event.actor)
    return event, Draft("ended", {**data, "state": "done", "outcome": value}, event.actor)


def _event(view: SessionContext, at: int) -> Event:
    for event in view.event_log.events(at - 1, at):
        if event.erased:
            raise NotFound("no_event", f"event {at} was erased: there is nothing to change")
        return event
    raise NotFound("no_event", f"session {view.name!r} has no event {at}: s.events() has all")


def _end_of(view: SessionContext, event: Event) -> Event:
    """Return the `ended` event of an action, given its `begun` or its `ended` event."""
    if event.kind == "ended":
        return event
    if event.kind != "begun":
        raise _no_such(event, "action")
    for later in view.event_log.events(event.seq):
        if later.kind == "ended" and later.data.get("id") == event.data["id"]:
            return later
    raise NotFound("no_event", f"the action begun by event {event.seq} has not ended")


def _no_such(event: Event, kind: str) -> Invalid:
    return Invalid(
        "bad_change", f"event {event.seq} is no {kind} but a {event.kind}: choose another"
    )

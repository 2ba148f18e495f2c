"""Actions, steps and approval answers of a session, in the form that all surfaces show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ortet.errors import Conflict
from ortet.hub.hub import Hub
from ortet.journal.events import Event
from ortet.journal.replay.cursor import is_skipped
from ortet.journal.state.records import Approval, Effect
from ortet.sessions.actions.approvals import need
from ortet.sessions.reader import SessionReader

_OUTCOME_FIELDS = ("state", "outcome", "error")


class ActionDetails(msgspec.Struct, frozen=True):
    """An action with what its events say: what was called, and what came of it."""

    effect: Effect
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    approval: str = ""
    outcome: Any = None
    error: str | None = None


class SessionStep(msgspec.Struct, frozen=True):
    """What a program did; of an action also what it got: `state` is null while it has not ended."""

    seq: int
    kind: str
    data: dict[str, Any]
    state: str | None = None
    outcome: Any = None
    error: str | None = None


def actions_of(view: SessionReader) -> list[ActionDetails]:
    """Return the effects on this timeline in the order in which they began."""
    details: dict[str, dict[str, Any]] = {}
    for event in view.events():
        if event.kind == "begun" and not event.erased:
            details[event.data["id"]] = {
                "args": event.data.get("args", []),
                "kwargs": event.data.get("kwargs", {}),
                "approval": event.data.get("approval", ""),
            }
        elif event.kind == "ended" and not event.erased:
            outcome = {key: event.data.get(key) for key in ("outcome", "error")}
            details.setdefault(event.data["id"], {}).update(outcome)
    effects = sorted(view.internals.state.effects, key=lambda effect: effect.begun)
    return [ActionDetails(one, **details.get(one.id, {})) for one in effects]


def steps_of(events: Iterable[Event]) -> list[SessionStep]:
    """Return the steps of the program, each action with its outcome."""
    steps: list[SessionStep] = []
    # by effect id: index of the latest attempt, to which an "ended" event belongs
    tries: dict[str, int] = {}
    for event in events:
        id_ = event.data.get("id", "")
        if event.kind == "ended" and id_ in tries:
            got = {key: event.data.get(key) for key in _OUTCOME_FIELDS}
            steps[tries[id_]] = msgspec.structs.replace(steps[tries[id_]], **got)
        if is_skipped(event.kind) or event.waiting:
            continue
        if event.kind == "begun":
            tries[id_] = len(steps)
        steps.append(SessionStep(event.seq, event.kind, event.data))
    return steps


def answer_approval(
    hub: Hub, session: str, approval: str, *, by: str, ok: bool, why: str
) -> Approval:
    """Allow or deny what a session requested.

    Raises:
        Conflict: "answered" if another answer was recorded first.
    """
    asked = need(hub.get(session).actions.approvals(), approval)
    if asked.state != "asked":
        raise _already_answered_error(asked)
    now = hub.approve(session, approval, by=by, ok=ok, why=why)
    if now.state != ("given" if ok else "denied"):
        raise _already_answered_error(now)
    return now


def _already_answered_error(approval: Approval) -> Conflict:
    return Conflict(
        "answered",
        f"approval {approval.id[-8:]} was {approval.state} by {approval.by}, and the first answer "
        "counts: have it asked again",
        id=approval.id,
        state=approval.state,
        by=approval.by,
    )

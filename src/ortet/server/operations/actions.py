"""Actions of a session, their effects outside the store, and approvals by people."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ortet.errors import Invalid
from ortet.hub.hub import Hub, hub_of
from ortet.integrations._shared.actions import ActionDetails, actions_of, answer_approval
from ortet.journal.state.records import Approval, Effect
from ortet.server.auth.tokens import Caller
from ortet.server.operations.registry import operation
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import (
    CreatedId,
    EventInfo,
    Id,
    NonEmptyText,
    OperationRequest,
    recorded_event_info,
)
from ortet.sessions.actions.actions import KeyScope, Replay
from ortet.sessions.actions.approvals import pending_approvals
from ortet.sessions.actions.effects import Intent
from ortet.sessions.conversation_state import unsettled_of
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

State = Literal["begun", "done", "failed", "unsettled"]
Label = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
Key = Annotated[
    str,
    msgspec.Meta(max_length=1000, description="One for each effect, which is done once under it."),
]


class ListEffects(Paged, frozen=True):
    """`open`: only effects of this session whose outcome is not known."""

    state: State | None = None
    name: str | None = None
    key: str | None = None
    open: bool = False


@operation("GET", "/sessions/{session}/effects")
def effects(view: SessionReader, ask: ListEffects) -> Page[Effect]:
    """List the effects of a session and of its family. Effects of a restored-away timeline are
    included.
    """
    selected = [
        one
        for one in (unsettled_of(view.internals.context) if ask.open else view.effects())
        if ask.state in (None, one.state)
        and ask.name in (None, one.name)
        and ask.key in (None, one.key)
    ]
    return paginate(selected, ask, lambda one: one.id)


class ListActions(Paged, frozen=True):
    state: State | None = None
    name: str | None = None


@operation("GET", "/sessions/{session}/actions")
def actions(view: SessionReader, ask: ListActions) -> Page[ActionDetails]:
    """List the actions on the present timeline of a session, each with its arguments and its
    result.
    """
    selected = [
        one
        for one in actions_of(view)
        if ask.state in (None, one.effect.state) and ask.name in (None, one.effect.name)
    ]
    return paginate(selected, ask, lambda one: one.effect.id)


class Act(OperationRequest, frozen=True):
    """`replay`: pure (may run again), recorded (a replay returns the recorded result), idempotent
    (may run again with the same key), or once. `scope`: the key is unique in the family, that is in
    all forks, or in the timeline. `approve`: the reason that is shown to the person who must allow
    the action first.
    """

    name: Label
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    why: str = ""
    replay: Replay = "recorded"
    key: Key = ""
    scope: KeyScope = "family"
    approve: NonEmptyText | None = None


@operation("POST", "/sessions/{session}/actions", status=201)
def act(session: Session, ask: Act) -> Intent:
    """Begin an action that the client performs itself. The intent is durable when the answer
    arrives: perform the action, then settle the effect. If `done` is true, the action was performed
    under this key before and must not run again. If an action under the key was begun and never
    settled, the answer is a conflict with its intent.
    """
    return session.actions.intend(
        ask.name,
        ask.args,
        ask.kwargs,
        why=ask.why,
        replay=ask.replay,
        key=ask.key,
        scope=ask.scope,
        approve=ask.approve,
    )


class Settle(OperationRequest, frozen=True):
    """`outcome`: the result of the action. `failed`: the action failed, and `error` says why."""

    effect: Id
    outcome: Any = None
    failed: bool = False
    error: str = ""


@operation("POST", "/sessions/{session}/effects/{effect}/settle")
def settle(session: Session, ask: Settle) -> EventInfo:
    """Record the outcome of an effect. The client began the effect itself, or its outcome is not
    known.
    """
    if (ask.failed or ask.error) and ask.outcome is not None:
        raise Invalid("bad_request", "an action that failed has no outcome: give outcome or error")
    event = session.actions.settle(ask.effect, ask.outcome, failed=ask.failed, error=ask.error)
    return recorded_event_info(session, event)


class ListApprovals(Paged, frozen=True):
    state: Literal["asked", "given", "denied"] | None = None


@operation("GET", "/sessions/{session}/approvals")
def approvals(view: SessionReader, ask: ListApprovals) -> Page[Approval]:
    """List the approvals that a session asked for, with the answers."""
    selected = [one for one in view.actions.approvals() if ask.state in (None, one.state)]
    return paginate(selected, ask, lambda one: one.id)


class Waiting(msgspec.Struct, frozen=True):
    """An approval that waits for an answer, with the session that asked for it."""

    session: str
    name: str
    agent: str
    approval: Approval


@operation("GET", "/approvals", filtered=True)
def all_approvals(hub: Hub, ask: Paged, caller: Caller) -> Page[Waiting]:
    """List the approvals that wait for an answer, in all sessions that the token may see."""
    waiting = [
        Waiting(row.id, row.name, row.agent, one)
        for row, one in pending_approvals(hub.internals.services, caller.sees)
    ]
    return paginate(waiting, ask, lambda one: f"{one.session}/{one.approval.id}")


class RequestApproval(OperationRequest, frozen=True):
    what: NonEmptyText
    why: str = ""


@operation("POST", "/sessions/{session}/approvals", status=201)
def request_approval(session: Session, ask: RequestApproval) -> CreatedId:
    """Ask a person to allow something."""
    return CreatedId(session.actions.request_approval(ask.what, why=ask.why))


class AnswerApproval(OperationRequest, frozen=True):
    """`why`: the reason. The answer is recorded under the name of the caller's token."""

    approval: Id
    why: str = ""


@operation("POST", "/sessions/{session}/approvals/{approval}/approve", needs="admin")
def approve(view: SessionReader, ask: AnswerApproval, caller: Caller) -> Approval:
    """Allow an approval that a session asked for. No lease is needed, and the first answer counts.
    The own token of an agent, which allows write only, cannot allow it.
    """
    hub, by = hub_of(view), caller.name
    return answer_approval(hub, view.id, ask.approval, by=by, ok=True, why=ask.why)


@operation("POST", "/sessions/{session}/approvals/{approval}/deny", needs="admin")
def deny(view: SessionReader, ask: AnswerApproval, caller: Caller) -> Approval:
    """Deny an approval that a session asked for. The session that asked gets the reason."""
    hub, by = hub_of(view), caller.name
    return answer_approval(hub, view.id, ask.approval, by=by, ok=False, why=ask.why)

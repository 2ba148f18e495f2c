"""Runs as data: steps, comparison of two runs, examples for evaluation, portable checkpoints and
carry tokens.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.errors import Refused
from ortet.hub.governance.datasets import dataset_record
from ortet.hub.hub import Hub
from ortet.integrations._shared.actions import SessionStep, steps_of
from ortet.journal.reports.checkpoint import AgentCheckpoint
from ortet.server.auth.tokens import Caller
from ortet.server.operations.registry import operation
from ortet.server.operations.sessions import (
    Agent,
    Listed,
    Name,
    SessionInfo,
    info_of,
    session_summary,
)
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import (
    EventInfo,
    NonEmptyText,
    OperationRequest,
    check_agent_visible,
    event_of,
    visible_session,
    visible_sessions,
)
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.portable.carry_token import check_fresh, read_carry
from ortet.sessions.reader import SessionReader


@operation("GET", "/sessions/{session}/steps")
def steps(view: SessionReader, ask: Paged) -> Page[SessionStep]:
    """List the actions of a session with their results. A replay returns these results."""
    return paginate(steps_of(view.events()), ask, lambda one: one.seq)


class DiffRuns(Paged, frozen=True, kw_only=True):
    """`left` and `right`: the sessions. `differing`: only the steps that differ."""

    left: str
    right: str
    differing: bool = False


class PairInfo(msgspec.Struct, frozen=True):
    """The events of the two runs for one step. An event is null if its run has no such step."""

    left: EventInfo | None
    right: EventInfo | None
    same: bool


class RunsDiffer(msgspec.Struct, frozen=True):
    """`seq`: the number of the first event that differs, or null if the runs are equal."""

    left: str
    right: str
    same: bool
    seq: int | None
    pairs: Page[PairInfo]


@operation("GET", "/runs/diff", filtered=True)
def diff_runs(hub: Hub, ask: DiffRuns, caller: Caller) -> RunsDiffer:
    """Compare the steps of two sessions. Times and ids are not compared."""
    left, right = (visible_session(hub, caller, one) for one in (ask.left, ask.right))
    comparison = hub.diff_runs(left, right)
    pairs = [
        (
            number,
            PairInfo(_optional_event_info(one.left), _optional_event_info(one.right), one.same),
        )
        for number, one in enumerate(comparison.pairs)
        if not (ask.differing and one.same)
    ]
    page = paginate(pairs, ask, lambda pair: pair[0]).map_items(lambda pair: pair[1])
    return RunsDiffer(left.id, right.id, comparison.first is None, comparison.seq or None, page)


def _optional_event_info(event: Any) -> EventInfo | None:
    return event_of(event) if event is not None else None


class ListExamples(Paged, frozen=True):
    """`session`: only these sessions; the parameter may be repeated. `agent`: only sessions of this
    agent. By default, all sessions that the token may see.
    """

    session: list[str] = []
    agent: str | None = None


class Examples(msgspec.Struct, frozen=True):
    """Each example equals a line that `ortet dataset` writes."""

    items: list[dict[str, Any]]
    next: str | None


@operation("GET", "/dataset", filtered=True)
def dataset(hub: Hub, ask: ListExamples, caller: Caller) -> Examples:
    """Return sessions as examples for evaluation: messages, actions, facts, decisions and amounts
    spent.
    """
    rows = [row for row in visible_sessions(hub, caller) if ask.agent in (None, row.agent)]
    if ask.session:
        wanted = {visible_session(hub, caller, one).id for one in ask.session}
        rows = [row for row in rows if row.id in wanted]
    page = paginate(rows, ask, lambda row: row.id)
    return Examples([dataset_record(hub.get(row.id)) for row in page.items], page.next)


@operation("GET", "/sessions/{session}/checkpoint")
def checkpoint(view: SessionReader) -> AgentCheckpoint:
    """Return the goal, plan, conversation, facts and next step of a session as one portable
    record.
    """
    # The text includes the digest, the record does not.
    return msgspec.json.decode(
        view.checkpoint().to_json(), type=thread_safe_struct(AgentCheckpoint)
    )


class FromCheckpoint(OperationRequest, frozen=True):
    """`checkpoint`: an AgentCheckpoint. `name` and `agent`: those of the new session, by default
    those of the checkpoint.
    """

    checkpoint: dict[str, Any]
    name: Name | None = None
    agent: Agent | None = None


@operation("POST", "/checkpoints", filtered=True, status=201)
def from_checkpoint(pool: SessionPool, ask: FromCheckpoint, caller: Caller) -> SessionInfo:
    """Make a session from a checkpoint. Actions that were performed once are not performed
    again.
    """
    checkpoint = AgentCheckpoint.from_json(msgspec.json.encode(ask.checkpoint))
    check_agent_visible(caller, ask.agent or checkpoint.agent or "default")
    with pool.hub() as hub:  # sessions that are opened in the hub are paused at the end
        if caller.agents:
            _check_artifacts_visible(hub, checkpoint, caller)
        session = hub.transfer.from_checkpoint(
            checkpoint, name=ask.name or "", agent=ask.agent or ""
        )
        return info_of(session)


def _check_artifacts_visible(hub: Hub, agent_checkpoint: AgentCheckpoint, caller: Caller) -> None:
    """Refuse artifacts that the caller may not read.

    Anyone can write a checkpoint with any hash.
    """
    known: set[str] = set()
    if any(
        row.id == agent_checkpoint.session_id for row in hub.sessions()
    ):  # the new session would join its family
        view = visible_session(hub, caller, agent_checkpoint.session_id)
        known = {artifact.oid for artifact in view.artifacts()}
    if any(artifact.oid and artifact.oid not in known for artifact in agent_checkpoint.artifacts):
        raise Refused(
            "token_agents",
            "this checkpoint has artifacts that are not of a session which this token may see: "
            "leave them out, or use another token",
        )


class CarryInfo(msgspec.Struct, frozen=True):
    """`carry`: signed text that the client stores."""

    session: str
    carry: str


@operation("GET", "/sessions/{session}/carry")
def carry(view: SessionReader) -> CarryInfo:
    """Return the state of a session as a carry token, which is signed text. `POST /turn` continues
    from it.
    """
    return CarryInfo(view.id, view.carry())


class CheckCarry(OperationRequest, frozen=True):
    carry: NonEmptyText


@operation("POST", "/carry/check", needs="read", filtered=True)
def check_carry(hub: Hub, ask: CheckCarry, caller: Caller) -> Listed:
    """Check a carry token, and return its session. The answer is 403 if the token was changed, and
    409 if the session has continued since.
    """
    held = read_carry(hub.internals.session_manager.store, ask.carry)
    view = visible_session(hub, caller, held.session)
    check_fresh(view.internals.context, held)
    return session_summary(view.internals.row)

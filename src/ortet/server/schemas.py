"""Types and helpers that requests and answers of several operations share."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import msgspec

from ortet.cli.terminal import output
from ortet.cli.times import parse_time_at
from ortet.errors import Refused
from ortet.history.diff.tree_diff import TreeChange
from ortet.hub.hub import Hub
from ortet.journal.events import Event
from ortet.objects.base import ObjectStore
from ortet.server.auth.tokens import Caller
from ortet.sessions.memory.shared_scopes import check_scope
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow, no_session

Number = Annotated[int, msgspec.Meta(ge=0, le=2**53, description="A whole number from 0.")]
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
NonEmptyText = Annotated[str, msgspec.Meta(min_length=1, max_length=1 << 20)]
Ref = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=1000,
        description="A commit: its id or the first digits of it, a branch, a tag, HEAD~2, x@{1}.",
    ),
]
When = Annotated[
    str,
    msgspec.Meta(
        max_length=64, description="A date, a time in ISO 8601, seconds since 1970, or 7d ago."
    ),
]


class OperationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of requests. An unknown field is an error."""


class EmptyRequest(OperationRequest, frozen=True):
    """A request without fields."""


class Why(OperationRequest, frozen=True):
    why: str = ""


class EventInfo(msgspec.Struct, frozen=True):
    """An event of the journal. `data`: empty if the event was erased. `waiting`: the event waits in
    the inbox and has no number yet. `hash`: binds the event to all earlier events. Times are in ns
    since 1970.
    """

    seq: int
    kind: str
    time: int
    actor: str
    data: dict[str, Any]
    hash: str
    timeline: str
    refs: list[str]
    version: int
    erased: bool
    waiting: bool


class ChangeInfo(msgspec.Struct, frozen=True):
    """A path that differs. `kind`: added, removed, modified, metadata or renamed. `patch`: the
    changed lines, if the request asks for them.
    """

    path: str
    kind: str
    old_path: str | None
    content_changed: bool
    fields: list[str]
    old_size: int | None
    new_size: int | None
    patch: str | None = None


class CreatedId(msgspec.Struct, frozen=True):
    """The id of the new thing."""

    id: str


def event_of(event: Event) -> EventInfo:
    """Return an event in the form of the API."""
    return EventInfo(
        seq=event.seq,
        kind=event.kind,
        time=event.time,
        actor=event.actor,
        data=event.data,
        hash=event.hash.hex(),
        timeline=event.timeline,
        refs=[bytes(oid).hex() for oid, _ in event.refs],
        version=event.version,
        erased=event.erased,
        waiting=event.waiting,
    )


def recorded_event_info(session: Session, event: Event) -> EventInfo:
    """Return the info of an event that was just recorded.

    Such an event does not carry its timeline; only events that were read from the journal do.
    """
    return msgspec.structs.replace(event_of(event), timeline=session.internals.row.timeline)


def change_of(change: TreeChange, objects: ObjectStore, *, patch: bool = False) -> ChangeInfo:
    """Return a changed path in the form of the API."""
    return ChangeInfo(**output.change_data(change, objects, patch=patch))


def parse_time(hub: Hub, name: str, text: str | None, *, ahead: bool = False) -> str | None:
    """Return a time in the form that the library takes.

    Raises:
        Invalid: `text` is not a time.
    """
    return parse_time_at(hub.clock.now_ns(), name, text, ahead=ahead)


def check_agent_visible(caller: Caller, agent: str) -> str:
    """Return `agent`.

    Raises:
        Refused: The token is limited to other agents.
    """
    if not caller.sees(agent):
        raise Refused("token_agent", f"this token is not for agent {agent!r}: use another")
    return agent


def check_scope_visible(
    caller: Caller, scope: str | None, own_scopes: Collection[str] = ()
) -> str | None:
    """Return `scope`.

    Memory of a user or a project belongs to all agents. A token that is limited to some agents may
    use only the scopes of its own session.

    Args:
        caller: The caller of the request.
        scope: A memory scope, such as `user:NAME`, or None.
        own_scopes: Scopes of the session that is asked.

    Raises:
        Refused: The scope is not visible to the token.
    """
    named = scope is not None and ":" in (check_scope(scope) or "")
    if caller.agents and named and scope not in own_scopes:
        raise Refused(
            "token_memory",
            f"this token is for some agents, and {scope!r} is not for them alone: use a session "
            "that was begun with it, or another token",
        )
    return scope


def visible_sessions(hub: Hub, caller: Caller) -> list[SessionRow]:
    """Return the sessions that the caller may see, oldest first."""
    return [row for row in hub.sessions() if caller.sees(row.agent)]


def visible_session(hub: Hub, caller: Caller, session: str) -> SessionReader:
    """Return a session for reading.

    Raises:
        NotFound: There is no such session, or the token may not see it.
    """
    view = hub.get(session)
    if not caller.sees(view.agent):
        raise no_session(session)
    return view

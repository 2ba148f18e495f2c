"""Sessions: begun, listed, read, ended."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ortet.errors import Refused
from ortet.graph.commits import CommitInfo
from ortet.session.hub import Hub
from ortet.session.session import Session
from ortet.session.view import View
from ortet.surface.http.operations import operation
from ortet.surface.http.rooms import Rooms
from ortet.surface.http.tokens import Caller


class SessionInfo(msgspec.Struct, frozen=True):
    """A session as it is now. `head` is its newest commit; times are in ns since 1970."""

    id: str
    name: str
    agent: str
    status: str
    created: int
    branch: str
    goal: str
    head: CommitInfo | None
    family: str
    parent: str
    workspace: str
    engine: str


class Listed(msgspec.Struct, frozen=True):
    """A session in a list: what its row says."""

    id: str
    name: str
    agent: str
    status: str
    created: int
    branch: str
    family: str
    parent: str


class SessionList(msgspec.Struct, frozen=True):
    """`next` is the cursor of the page that follows; null: there is none."""

    items: list[Listed]
    next: str | None = None


class ListSessions(msgspec.Struct, frozen=True):
    """Newest first."""

    agent: str | None = None
    name: str | None = None
    status: str | None = None
    limit: int = msgspec.field(default=100)
    after: str | None = None


class Begin(msgspec.Struct, frozen=True):
    """As `hub.session` takes it."""

    name: str
    agent: str = "default"
    goal: str = ""
    workspace: str | None = None
    files: Literal["inplace", "private"] | None = None
    engine: str = "auto"
    budget: dict[str, float] | None = None
    durability: Literal["event", "group", "commit"] | None = None
    profile: str | None = None
    parent: str | None = None
    limits: dict[str, Any] | None = None
    network: Literal["none", "outbound", "host"] | None = None
    scopes: list[str] | None = None


class Ended(msgspec.Struct, frozen=True):
    status: str


class Why(msgspec.Struct, frozen=True):
    why: str = ""


def info_of(view: View) -> SessionInfo:
    row = view.row
    return SessionInfo(
        id=row.id,
        name=row.name,
        agent=row.agent,
        status=view.status,
        created=row.created,
        branch=row.branch,
        goal=view.goal,
        head=view.head,
        family=row.family,
        parent=row.parent,
        workspace=row.path,
        engine=row.engine,
    )


@operation("GET", "/sessions", filtered=True)
def list_sessions(hub: Hub, ask: ListSessions, caller: Caller) -> SessionList:
    """Sessions that the token may see, the newest first."""
    rows = [row for row in reversed(hub.sessions()) if caller.sees(row.agent)]
    found = [
        row
        for row in rows
        if ask.agent in (None, row.agent)
        and ask.name in (None, row.name)
        and ask.status in (None, row.status)
    ]
    if ask.after is not None:
        places = [number for number, row in enumerate(found) if row.id == ask.after]
        found = found[places[0] + 1 :] if places else []
    page = found[: ask.limit]
    items = [
        Listed(
            row.id, row.name, row.agent, row.status, row.created, row.branch, row.family, row.parent
        )
        for row in page
    ]
    return SessionList(items, page[-1].id if len(found) > len(page) else None)


@operation("POST", "/sessions", filtered=True)
def begin(rooms: Rooms, ask: Begin, caller: Caller) -> SessionInfo:
    """Begin a session, or go on with the one of this name. A `workspace` is a directory of the
    server's host, and needs an admin's token."""
    if not caller.sees(ask.agent):
        raise Refused("token_agent", f"this token is not for agent {ask.agent!r}: use another")
    if ask.workspace is not None:
        caller.need("admin")
        caller.need_host()
    options = {name: value for name, value in msgspec.structs.asdict(ask).items() if value}
    name = options.pop("name", "")
    with rooms.begin(ask.agent, name, lambda hub: hub.session(name, **options)) as session:
        return info_of(session)


@operation("GET", "/sessions/{session}")
def show_session(view: View) -> SessionInfo:
    """One session, with its newest commit."""
    return info_of(view)


@operation("POST", "/sessions/{session}/pause")
def pause(session: Session, ask: Why) -> Ended:
    """Let go of it: another process may go on."""
    session.pause(ask.why)
    return Ended(session.status)


@operation("POST", "/sessions/{session}/close")
def close(session: Session, ask: Why) -> Ended:
    """It is done: its name stays taken, and it can be read and archived."""
    session.close(ask.why)
    return Ended(session.status)

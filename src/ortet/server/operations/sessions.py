"""Sessions: begin, list, read, end, archive."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import msgspec

from ortet.errors import Conflict
from ortet.history.commits import CommitInfo
from ortet.hub.governance.legal_holds import hold_of
from ortet.hub.hub import Hub, hub_of
from ortet.server.auth.host_access import check_move_access
from ortet.server.auth.tokens import Caller
from ortet.server.operations.registry import operation
from ortet.server.pagination import Page, Paged, Sort, sort_sessions
from ortet.server.schemas import (
    OperationRequest,
    Why,
    check_agent_visible,
    check_scope_visible,
    visible_sessions,
)
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.reader import SessionReader
from ortet.sessions.results import ArchiveRecord
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow

Status = Literal["open", "active", "paused", "closed", "archived"]
Name = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=200,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]*(/[A-Za-z0-9][A-Za-z0-9._@+-]*)*$",
    ),
]
Agent = Annotated[
    str, msgspec.Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$")
]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class Me(msgspec.Struct, frozen=True):
    """The caller. `allows`: read, write or admin; each includes those before it. `agents`: only
    sessions of these agents; empty for all.
    """

    name: str
    allows: str
    tenant: str
    agents: list[str]


@operation("GET", "/me", filtered=True)
def me(hub: Hub, caller: Caller) -> Me:
    """Show the name and the rights of the caller's token."""
    del hub
    return Me(caller.name, caller.allows, caller.tenant, list(caller.agents))


class Listed(msgspec.Struct, frozen=True):
    """A session in a list, as its row describes it."""

    id: str
    name: str
    agent: str
    status: str
    created: int
    branch: str
    family: str
    parent: str


class SessionInfo(Listed, frozen=True):
    """A session with its present state. `head`: its newest commit. Times are in ns since 1970."""

    goal: str
    head: CommitInfo | None
    workspace: str
    engine: str
    profile: str
    scopes: list[str]
    events: int
    hold: str | None


def session_summary(row: SessionRow) -> Listed:
    return Listed(
        row.id, row.name, row.agent, row.status, row.created, row.branch, row.family, row.parent
    )


def info_of(view: SessionReader) -> SessionInfo:
    row, held = view.internals.row, hold_of(hub_of(view).store, view.id)
    return SessionInfo(
        id=row.id,
        name=row.name,
        agent=row.agent,
        status=view.status,
        created=row.created,
        branch=row.branch,
        family=row.family,
        parent=row.parent,
        goal=view.goal,
        head=view.head,
        workspace=row.path,
        engine=row.engine,
        profile=row.profile,
        scopes=row.scopes,
        events=view.internals.event_log.tip().seq,
        hold=held.why if held else None,
    )


class ListSessions(Paged, frozen=True):
    """Only sessions that match all given fields. `search`: a part of the name. `sort`: the newest
    first (`created`), the last active first (`activity`), or by `name`. Use `created` to read all
    pages: with `activity`, a session that becomes active moves to the first page and is missing
    from later pages.
    """

    agent: str | None = None
    name: str | None = None
    status: Status | None = None
    family: str | None = None
    parent: str | None = None
    search: str = ""
    sort: Sort = "created"


@operation("GET", "/sessions", filtered=True)
def list_sessions(hub: Hub, ask: ListSessions, caller: Caller) -> Page[Listed]:
    """List the sessions that the token may see, the newest first unless `sort` says otherwise."""
    rows = [
        row
        for row in visible_sessions(hub, caller)
        if ask.agent in (None, row.agent)
        and ask.name in (None, row.name)
        and ask.status in (None, row.status)
        and ask.family in (None, row.family)
        and ask.parent in (None, row.parent)
        and ask.search.lower() in row.name.lower()
    ]
    line = sort_sessions(hub.catalog, rows, ask.sort)
    start = line.index_after(ask.after) if ask.after is not None else 0
    end = min(start + ask.limit, len(line.rows))
    more = line.cursor(end - 1) if start < end < len(line.rows) else None
    return Page([session_summary(row) for row in line.rows[start:end]], more)


class Begin(OperationRequest, frozen=True):
    """The arguments of `hub.session`. `budget` and `parent`: only for a new session. `commit`:
    manual, action, milestone, {"minutes": 5} or {"cost": 3}. `commit`, `durability`, `handover` and
    `environment` are valid until the session is released, and override its `profile`, which is
    stored. `reopen` opens a session that was finished.
    """

    name: Name
    agent: Agent = "default"
    goal: str = ""
    workspace: str | None = None
    files: Literal["inplace", "private"] | None = None
    engine: Literal["auto", "folder", "overlay", "criu"] = "auto"
    budget: dict[str, Amount] | None = None
    durability: Literal["event", "group", "commit"] | None = None
    commit: str | dict[str, Amount] | None = None
    profile: Literal["chatbot", "assistant", "worker", "enterprise"] | None = None
    parent: str | None = None
    handover: str | None = None
    environment: Literal["asked", "ends", "commit"] | None = None
    limits: dict[str, Any] | None = None
    network: Literal["none", "outbound", "host"] | None = None
    scopes: list[str] | None = None
    reopen: bool = False


@operation("POST", "/sessions", filtered=True)
def begin(pool: SessionPool, ask: Begin, caller: Caller) -> SessionInfo:
    """Begin a session, or open the session of this name. A `workspace` is a directory of the
    server's host and needs an admin's token. A `network` belongs to that host and needs a token
    that may run commands there.
    """
    check_agent_visible(caller, ask.agent)
    for scope in ask.scopes or ():
        check_scope_visible(caller, scope)
    if ask.workspace is not None:
        caller.need("admin")
        caller.need_host()
    if ask.network not in (None, "none"):
        caller.need_host()
    if any((ask.profile, ask.handover, ask.environment, ask.limits, ask.network)):
        with pool.hub() as hub:  # these options change what a commit reads or writes there
            row = hub.internals.session_manager.table.find(ask.agent, ask.name)
            if row is not None:
                check_move_access(caller, row, hub=hub)
    if ask.parent is not None:
        pool.row(ask.parent, caller.sees)
    options = {name: value for name, value in msgspec.structs.asdict(ask).items() if value}
    name = options.pop("name")
    with pool.open_by_name(ask.agent, name, lambda hub: hub.session(name, **options)) as session:
        return info_of(session)


@operation("GET", "/sessions/{session}")
def show_session(view: SessionReader) -> SessionInfo:
    """Show a session and its newest commit. A session is named by its id, by its name if only one
    agent has a session of this name, or as AGENT/NAME with each slash written %2F.
    """
    return info_of(view)


class SessionEnded(msgspec.Struct, frozen=True):
    id: str
    name: str
    status: str


@operation("POST", "/sessions/{session}/pause")
def pause(session: Session, ask: Why) -> SessionEnded:
    """Release a session. Another process may then open it."""
    session.pause(ask.why)
    return SessionEnded(session.id, session.name, session.status)


@operation("POST", "/sessions/{session}/close")
def close(session: Session, ask: Why) -> SessionEnded:
    """Finish a session: its status becomes "closed". Its name stays taken, and it can still be read
    and archived. `reopen` opens it again.
    """
    session.finish(ask.why)
    return SessionEnded(session.id, session.name, session.status)


class SessionRequest(OperationRequest, frozen=True):
    """`session`: the id or name of a session."""

    session: str


class Resume(SessionRequest, frozen=True):
    """`reopen`: also if the session was finished."""

    reopen: bool = False


@operation("POST", "/sessions/{session}/resume", filtered=True)
def resume(pool: SessionPool, ask: Resume, caller: Caller) -> SessionInfo:
    """Make a session ready to continue. An archived session is brought back, and actions that a
    crash interrupted get an outcome.
    """
    row = pool.row(ask.session, caller.sees)
    if row.status == "closed" and not ask.reopen:
        raise Conflict(
            "illegal_move",
            f"session {row.name!r} is closed: open it again with `reopen`, begin another, or read "
            "this one",
            status=row.status,
        )
    if row.status == "archived":
        with pool.with_session_closed(row) as hub:
            hub.unarchive(row.id)
    else:
        name, agent = row.name, row.agent
        opener = partial(Hub.session, name=name, agent=agent, reopen=ask.reopen)
        with pool.open_session(row, opener) as session:
            return info_of(session)
    with pool.view(row.id) as view:
        return info_of(view)


class Put(OperationRequest, frozen=True):
    """`why`: the reason."""

    session: str
    why: str = ""


@operation("POST", "/sessions/{session}/archive", filtered=True)
def archive(pool: SessionPool, ask: Put, caller: Caller) -> ArchiveRecord:
    """Archive a session as one verified bundle in the store. It can still be read."""
    row = pool.row(ask.session, caller.sees)
    with pool.with_session_closed(row) as hub:
        return hub.archive(row.id, ask.why)


@operation("POST", "/sessions/{session}/unarchive", filtered=True)
def unarchive(pool: SessionPool, ask: SessionRequest, caller: Caller) -> SessionInfo:
    """Bring an archived session back, paused or closed as it was before."""
    row = pool.row(ask.session, caller.sees)
    if row.status != "archived":
        raise Conflict(
            "illegal_move",
            f"session {row.name!r} is {row.status}, not archived: go on with it",
            status=row.status,
        )
    with pool.with_session_closed(row) as hub:
        hub.unarchive(row.id)
    with pool.view(row.id) as view:
        return info_of(view)


@operation("DELETE", "/sessions/{session}", needs="admin", filtered=True)
def remove(pool: SessionPool, ask: SessionRequest, caller: Caller) -> SessionEnded:
    """Remove a session and its events from the store. Its commits stay until the reflog releases
    them.
    """
    row = pool.row(ask.session, caller.sees)
    with pool.with_session_closed(row) as hub:
        hub.remove(row.id)
    return SessionEnded(row.id, row.name, "removed")

"""How a session starts: location of its files, initial content, limits and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ortet.backends.base import RowChange
from ortet.errors import Conflict
from ortet.journal.events import Draft
from ortet.machines.limits import parse_limits
from ortet.sessions.table import ARCHIVED, CLOSED, SessionRow, SessionTable
from ortet.workspaces.table import FilesMode, WorkspaceTable, check_live, usable_network

if TYPE_CHECKING:
    from ortet.sessions.profiles import OpenOptions
    from ortet.workspaces.manager import WorkspaceManager
    from ortet.workspaces.workspace import Workspace


class FilesLocation(msgspec.Struct, frozen=True):
    """Where a session has its files: nowhere, or in a directory."""

    path: str = ""
    engine: str = "auto"
    files: FilesMode | None = None
    limits: dict[str, Any] | None = None
    network: str | None = None

    def check(self, workspaces: WorkspaceManager) -> None:
        """Raise Unsupported if this host cannot run the engine, before a session is created."""
        if self.engine == "criu":
            workspaces.check_engine(self.engine)

    def taken_by(self, other: SessionRow) -> Conflict:
        return Conflict(
            "workspace_taken",
            f"{self.path} belongs to session {other.name!r}: go on with that one, or give another "
            "directory",
            session=other.id,
        )


NO_FILES = FilesLocation()


class InitialContent(msgspec.Struct, frozen=True):
    """The initial content of a session.

    `rows` are written in the same transaction. `family` is the family that it joins, and `spent`
    are amounts that it has spent in another store. `ledgers` hold effects that it knows of.
    """

    drafts: Sequence[Draft] = ()
    rows: Callable[[SessionRow], Sequence[RowChange]] = lambda _: ()
    family: str = ""
    parent: str = ""
    spent: dict[str, float] = {}
    ledgers: Sequence[str] = ()


NO_INITIAL_CONTENT = InitialContent()


def check_fits(row: SessionRow, location: FilesLocation, options: OpenOptions) -> None:
    """Raise Conflict unless the session can be opened at this location with these options."""
    if row.status == ARCHIVED or (row.status == CLOSED and not options.reopen):
        back = (
            "bring it back with hub.unarchive or `ortet unarchive`"
            if row.status == ARCHIVED
            else "open it again with reopen=True or `ortet resume --reopen`"
        )
        raise Conflict(
            "session_closed",
            f"session {row.name!r} is {row.status}: {back}, take another name, or read it with "
            f"hub.get({row.id!r})",
            status=row.status,
        )
    parent = options.parent
    if location.path and location.path != row.path:
        raise Conflict(
            "workspace_differs",
            f"session {row.name!r} works in {row.path or 'no directory'}: open it without "
            f"workspace=, or begin another for {location.path}",
        )
    if parent and (parent != row.parent or row.family != row.id):
        raise Conflict(
            "parent_differs",
            f"session {row.name!r} does not work for {parent}: open it without parent=, or begin "
            "another",
        )


def apply_limits(
    workspace_table: WorkspaceTable, row: SessionRow, location: FilesLocation
) -> SessionRow:
    """Return the row with the limits, network and host that the session is opened with.

    Its workspace gets them too. If a directory is given, the session moves to that of this host.
    """
    row = msgspec.structs.replace(row, host=_host(workspace_table, row, location))
    limits, network = location.limits, location.network
    if limits is None and network is None:
        return row
    check_live(row.engine == "criu", row.engine, limits, network)
    if limits is not None:
        parse_limits(limits)
        row = msgspec.structs.replace(row, limits=limits)
    if network is not None:
        row = msgspec.structs.replace(row, network=usable_network(network))
    known = workspace_table.get(row.branch)
    if known is not None:
        workspace_table.limit(known, limits, network)
    return row


def _host(workspace_table: WorkspaceTable, row: SessionRow, location: FilesLocation) -> str:
    """Return the host of the directory, which earlier releases did not record."""
    if location.path and row.host != workspace_table.host:
        workspace_table.move_to_this_host(row.branch)
        return workspace_table.host
    known = workspace_table.get(row.branch) if row.path and not row.host else None
    return known.host if known is not None else row.host


def open_first_workspace(workspaces: WorkspaceManager, row: SessionRow) -> Workspace:
    """Open the workspace at the directory of a session that has none yet."""
    workspaces.check_local_host(row.name, row.host)
    return workspaces.open(
        row.path,
        name=row.branch,
        engine=row.engine,
        files="private" if row.files == "private" else None,
        limits=row.limits,
        network=row.network,
    )


def budget_parent(session_table: SessionTable, parent: str) -> str:
    """Return the family whose budget contains that of a session working for `parent`.

    Raises:
        Conflict: "session_closed" if the parent is closed or archived.
    """
    if not parent:
        return ""
    row = session_table.get(parent)
    if row.status in (CLOSED, ARCHIVED):
        raise Conflict(
            "session_closed", f"session {row.name!r} is {row.status}: nobody can work for it"
        )
    return row.family

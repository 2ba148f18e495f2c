"""Private files that move between hosts of a shared store.

A host commits the files before it releases a session. The next host makes a new machine from that
commit and records the machine of the former host.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ortet._util.codec import decode, encode
from ortet._util.failpoints import failpoint
from ortet.backends.base import RowChange
from ortet.errors import Conflict, OrtetError, Unsupported
from ortet.history.diff.tree_diff import diff_images
from ortet.ids import Oid
from ortet.sessions.writing.lease_handover import is_shared_store
from ortet.workspaces.table import FormerHostMachine, WorkspaceRow

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.sessions.session import Session
    from ortet.workspaces.workspace import Workspace

_RELEASE_MESSAGE = "let go on this host"
_FOUND_MESSAGE = "found on a host where it was not committed"
_TRIES = 5


def commit_before_release(session: Session) -> None:
    """Commit files and running programs that only this host has, before the session is released.

    If the commit is refused, the files stay here and are found when the session returns.
    """
    files = session._files
    if files is not None and files.row.files == "private" and is_shared_store(session.hub):
        with suppress(OrtetError):
            session.commit(_RELEASE_MESSAGE)


def commit_for_other_hosts(session: Session) -> None:
    """Commit files that other processes of this host changed, and raise if that fails."""
    hub, row = session.hub, session.row
    known = hub.workspace_table.get(row.branch) if row.has_files and is_shared_store(hub) else None
    if known is not None and known.files == "private" and hub.is_local_host(known.host):
        session.commit(_RELEASE_MESSAGE)


def take_over_workspace(hub: Hub, row: WorkspaceRow) -> WorkspaceRow:
    """Take over a private workspace from another host, with a new machine.

    The engine is one that this host can run. Return the row unchanged if it is already here.
    """
    if not _is_on_other_host(hub, row):
        return row
    for _ in range(_TRIES):
        found = hub.catalog.row("workspace", row.name)
        if found is None:
            return row  # dropped concurrently; opening it reports that
        known = decode(WorkspaceRow, found.value)
        if not _is_on_other_host(hub, known):
            return known
        head = hub.catalog.head(f"branch:{row.name}")
        left = FormerHostMachine(known.machine, known.engine, head.oid if head else b"")
        new = replace(
            known,
            host=hub._store.host,
            machine=hub.new_id(),
            engine=_engine(hub, known),
            left={**known.left, known.host: left},
        )
        rows = [RowChange("workspace", row.name, encode(new), expect=found.version)]
        if not new.parent and hub.catalog.row("place", new.location_key) is None:
            rows += [RowChange("place", new.location_key, row.name.encode(), expect=0)]
            rows += [RowChange("place", known.location_key, None)]
        with suppress(Conflict):  # another process was first
            hub.catalog.move([], verb="relocate", rows=rows)
            failpoint("arrive.after-row")
            return new
    raise Conflict(
        "workspace_moving", f"other hosts are opening {row.name!r}, too: try again in a moment"
    )


def _is_on_other_host(hub: Hub, row: WorkspaceRow) -> bool:
    return row.files == "private" and is_shared_store(hub) and not hub.is_local_host(row.host)


def _engine(hub: Hub, row: WorkspaceRow) -> str:
    """Return the engine that the workspace had, or another one if this host cannot run it."""
    had = [row.engine, *(left.engine for left in row.left.values())]
    for engine in ("criu", row.engine):
        if engine in had:
            with suppress(Unsupported):
                hub.check_engine(engine)
                return engine
    _, engine = hub.resolve_files_and_engine("auto", "private")
    hub.check_engine(engine)
    if engine == "folder":
        raise Unsupported(
            "engine_unusable",
            f"{row.name!r} has private files, and this host has no engine for such: `ortet doctor` "
            "says why; hub.restore(commit, to=DIR) writes its files into a directory",
        )
    return engine


def recover_former_files(workspace: Workspace) -> None:
    """Save uncommitted files from an earlier stay on this host to the reflog.

    The machine of that time is then removed.
    """
    hub, row = workspace.hub, workspace.row
    left = row.left.get(hub._store.host)
    if left is None or not is_shared_store(hub):
        return
    then = replace(row, machine=left.machine, engine=left.engine)
    if hub._machines.exists(then):
        try:
            _commit_found_files(workspace, then, left)
        except OrtetError:
            return  # keep the machine and try again next time
        hub._machines.remove(then)
    rest = {host: one for host, one in row.left.items() if one != left}
    workspace.row = replace(row, left=rest)
    hub.catalog.put_row("workspace", row.name, encode(workspace.row))


def _commit_found_files(
    workspace: Workspace, former_row: WorkspaceRow, former: FormerHostMachine
) -> None:
    hub = workspace.hub
    live = hub._machines.open(former_row, lambda: None)
    try:
        with workspace.exclusive_access():
            image = live.machine.snapshot_files()
            known = workspace.image_oid(Oid(former.head)) if former.head else Oid(former_row.base)
            if diff_images(hub.trees, hub.read_image(known), hub.read_image(image)):
                workspace.commit_to_reflog(
                    image, Oid(former.head) if former.head else None, _FOUND_MESSAGE
                )
    finally:
        live.close()

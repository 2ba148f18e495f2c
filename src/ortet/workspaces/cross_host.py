"""Private files that move between hosts of a shared store.

A host commits the files before it releases a session. The next host makes a new machine from that
commit and records the machine of the former host.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from ortet._util.codec import decode, encode
from ortet._util.failpoints import failpoint
from ortet._util.log import get_logger
from ortet.backends.base import RowChange
from ortet.errors import Conflict, OrtetError
from ortet.history.diff.tree_diff import diff_images
from ortet.ids import Oid
from ortet.store.context import StoreContext
from ortet.workspaces.files import WorkspaceFiles
from ortet.workspaces.machine_homes import MachineHomes
from ortet.workspaces.table import FormerHostMachine, WorkspaceRow

_FOUND_MESSAGE = "found on a host where it was not committed"
_TRIES = 5


def take_over_workspace(
    store: StoreContext, row: WorkspaceRow, choose_engine: Callable[[WorkspaceRow], str]
) -> WorkspaceRow:
    """Take over a private workspace from another host, with a new machine.

    Return the row unchanged if it is already here.

    Args:
        store: the open store.
        row: the workspace.
        choose_engine: returns an engine that this host can run.
    """
    if not _is_on_other_host(store, row):
        return row
    for _ in range(_TRIES):
        found = store.catalog.row("workspace", row.name)
        if found is None:
            return row  # dropped concurrently; opening it reports that
        known = decode(WorkspaceRow, found.value)
        if not _is_on_other_host(store, known):
            return known
        head = store.catalog.head(f"branch:{row.name}")
        left = FormerHostMachine(known.machine, known.engine, head.oid if head else b"")
        new = replace(
            known,
            host=store.host,
            machine=store.new_id(),
            engine=choose_engine(known),
            left={**known.left, known.host: left},
        )
        rows = [RowChange("workspace", row.name, encode(new), expect=found.version)]
        if not new.parent and store.catalog.row("place", new.location_key) is None:
            rows += [RowChange("place", new.location_key, row.name.encode(), expect=0)]
            rows += [RowChange("place", known.location_key, None)]
        with suppress(Conflict):  # another process was first
            store.catalog.move([], verb="relocate", rows=rows)
            failpoint("arrive.after-row")
            return new
    raise Conflict(
        "workspace_moving", f"other hosts are opening {row.name!r}, too: try again in a moment"
    )


def _is_on_other_host(store: StoreContext, row: WorkspaceRow) -> bool:
    return row.files == "private" and store.is_shared and not store.is_local_host(row.host)


def recover_former_files(files: WorkspaceFiles, machines: MachineHomes) -> None:
    """Save uncommitted files from an earlier stay on this host to the reflog.

    The machine of that time is then removed.
    """
    store, branch = files.store, files.branch
    row = branch.row
    left = row.left.get(store.host)
    if left is None or not store.is_shared:
        return
    then = replace(row, machine=left.machine, engine=left.engine)
    if machines.exists(then):
        try:
            _commit_found_files(files, machines, then, left)
        except OrtetError as error:
            get_logger(__name__).warning(
                "the former files of branch %s are not saved yet: %s", branch.name, error.kind
            )
            return  # keep the machine and try again next time
        machines.remove(then)
    rest = {host: one for host, one in row.left.items() if one != left}
    branch.row = replace(row, left=rest)
    store.catalog.put_row("workspace", row.name, encode(branch.row))


def _commit_found_files(
    files: WorkspaceFiles,
    machines: MachineHomes,
    former_row: WorkspaceRow,
    former: FormerHostMachine,
) -> None:
    store = files.store
    live = machines.open(former_row, lambda: None)
    try:
        with files.exclusive_access():
            image = live.machine.snapshot_files()
            known = (
                files.branch.image_oid(Oid(former.head)) if former.head else Oid(former_row.base)
            )
            if diff_images(store.trees, store.read_image(known), store.read_image(image)):
                files.commit_to_reflog(
                    image, Oid(former.head) if former.head else None, _FOUND_MESSAGE
                )
    finally:
        live.close()

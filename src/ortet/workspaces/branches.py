"""Rename and delete branches, together with the workspaces on them."""

from __future__ import annotations

import msgspec

from ortet.backends.base import Move, RowChange
from ortet.errors import Conflict, NotFound, Refused
from ortet.history.refs import check_ref_name
from ortet.hub.hub import Hub
from ortet.ids import Oid


def rename(hub: Hub, old: str, new: str) -> Oid:
    """Rename a branch and its workspace. Return the commit that it points to."""
    head = _require_head(hub, old)
    _refuse_if_session(hub, old, "renamed")
    row = hub.workspace_table.get(old)
    if hub.refs.get(check_ref_name(new)) or hub.workspace_table.get(new):
        raise Conflict("name_taken", f"there is a branch {new!r} already: choose another name")
    rows: list[RowChange] = []
    if row:
        row = msgspec.structs.replace(row, name=new)
        rows = [RowChange("workspace", old, None), *hub.workspace_table.rows_of(row)]
    moves = [Move(f"branch:{old}", head, None), Move(f"branch:{new}", None, head)]
    hub.catalog.move(moves, verb="rename", actor=hub.author, detail=f"{old} to {new}", rows=rows)
    for workspace in hub.open_workspaces(old):
        workspace.rename(new)
    return head


def delete(hub: Hub, name: str) -> Oid:
    """Delete a branch without a workspace. Its commits stay in the reflog until that expires."""
    head = _require_head(hub, name)
    if hub.workspace_table.get(name):
        raise Refused(
            "branch_in_use",
            f"workspace {name!r} works on this branch: `ortet drop {name} --branch` forgets both",
        )
    _refuse_if_session(hub, name, "deleted")
    return hub.refs.delete(name, expect=head, actor=hub.author)


def _refuse_if_session(hub: Hub, name: str, done: str) -> None:
    """Raise Refused if a session works on the branch: the branch is the head of the session."""
    row = hub._session_manager().table.find_by_branch(name)
    if row is not None:
        raise Refused(
            "branch_in_use",
            f"session {row.name!r} works on branch {name!r}, which cannot be {done}: "
            f"`ortet session rm {row.name}` forgets it",
        )


def _require_head(hub: Hub, name: str) -> Oid:
    head = hub.refs.get(name)
    if head is None and hub.workspace_table.get(name):
        raise NotFound("no_commit", f"{name!r} has no commit yet: commit first")
    if head is None:
        names = ", ".join(found.name for found in hub.refs.branches()[:5])
        raise NotFound("no_branch", f"no branch is called {name!r}: there is {names or 'none yet'}")
    return head.oid

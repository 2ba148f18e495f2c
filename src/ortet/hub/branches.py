"""Rename and delete branches, together with the workspaces on them."""

from __future__ import annotations

import msgspec

from ortet.backends.base import Move, RowChange
from ortet.errors import Conflict, NotFound, Refused
from ortet.history.refs import check_ref_name
from ortet.ids import Oid
from ortet.sessions.manager import SessionManager


def rename(sessions: SessionManager, old: str, new: str) -> Oid:
    """Rename a branch and its workspace. Return the commit that it points to."""
    store, workspaces = sessions.store, sessions.workspaces
    head = _require_head(sessions, old)
    _refuse_if_session(sessions, old, "renamed")
    row = workspaces.table.get(old)
    if store.refs.get(check_ref_name(new)) or workspaces.table.get(new):
        raise Conflict("name_taken", f"there is a branch {new!r} already: choose another name")
    rows: list[RowChange] = []
    if row:
        row = msgspec.structs.replace(row, name=new)
        rows = [RowChange("workspace", old, None), *workspaces.table.rows_of(row)]
    moves = [Move(f"branch:{old}", head, None), Move(f"branch:{new}", None, head)]
    store.catalog.move(
        moves, verb="rename", actor=store.author, detail=f"{old} to {new}", rows=rows
    )
    for workspace in workspaces.find_open(old):
        workspace.files.branch.rename(new)
    return head


def delete(sessions: SessionManager, name: str) -> Oid:
    """Delete a branch without a workspace. Its commits stay in the reflog until that expires."""
    head = _require_head(sessions, name)
    if sessions.workspaces.table.get(name):
        raise Refused(
            "branch_in_use",
            f"workspace {name!r} works on this branch: `ortet drop {name} --branch` forgets both",
        )
    _refuse_if_session(sessions, name, "deleted")
    return sessions.store.refs.delete(name, expect=head, actor=sessions.store.author)


def _refuse_if_session(sessions: SessionManager, name: str, done: str) -> None:
    """Raise Refused if a session works on the branch: the branch is the head of the session."""
    row = sessions.table.find_by_branch(name)
    if row is not None:
        raise Refused(
            "branch_in_use",
            f"session {row.name!r} works on branch {name!r}, which cannot be {done}: "
            f"`ortet session rm {row.name}` forgets it",
        )


def _require_head(sessions: SessionManager, name: str) -> Oid:
    head = sessions.store.refs.get(name)
    if head is None and sessions.workspaces.table.get(name):
        raise NotFound("no_commit", f"{name!r} has no commit yet: commit first")
    if head is None:
        names = ", ".join(found.name for found in sessions.store.refs.branches()[:5])
        raise NotFound("no_branch", f"no branch is called {name!r}: there is {names or 'none yet'}")
    return head.oid

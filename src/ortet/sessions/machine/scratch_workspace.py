"""Scratch workspaces: private files of sessions without a directory, made at first use."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ortet._util.codec import encode
from ortet._util.failpoints import failpoint
from ortet.errors import Conflict
from ortet.history.records import Image, TreeEntry
from ortet.objects.base import Kind
from ortet.store.sweep_retry import run_with_sweep_retry

if TYPE_CHECKING:
    from ortet.sessions.table import SessionRow
    from ortet.workspaces.manager import WorkspaceManager
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace

_PATH_PREFIX = "/tmp/ortet-"


def scratch_workspace(workspaces: WorkspaceManager, row: SessionRow) -> Workspace:
    """Open the scratch workspace of a session.

    At first it has the files of the head commit, or no files.
    """
    known = workspaces.table.get(row.branch) or run_with_sweep_retry(
        workspaces.store, lambda: _make(workspaces, row)
    )
    if known.name != row.branch or not known.room:
        raise Conflict(
            "name_taken",
            f"{known.name!r} is another workspace, at {known.directory}: drop or rename it, then "
            f"session {row.name!r} can have files of its own",
        )
    return workspaces.open(name=row.branch)


def _make(workspaces: WorkspaceManager, row: SessionRow) -> WorkspaceRow:
    store, table = workspaces.store, workspaces.table
    _, engine = workspaces.resolve_files_and_engine(row.engine, "private")
    workspaces.check_engine(engine)
    draft = table.draft(Path(_PATH_PREFIX + row.id[-12:]), "private", engine)
    with store.writing():  # a sweep must not delete the base before the row holds it
        empty = store.trees.empty()
        root = TreeEntry(
            name=b"",
            mode=stat.S_IFDIR | 0o755,
            mtime=store.clock.now_ns(),
            uid=os.geteuid(),
            gid=os.getegid(),
            data=empty.oid,
            cid=empty.cid,
        )
        base = store.objects.put(Kind.IMAGE, encode(Image(root)))
        store.objects.flush()
        failpoint("room.before-row")
        made = replace(
            table.limit(draft, row.limits, row.network),
            name=row.branch,
            scope=workspaces.engines.scope,
            forks="" if row.engine == "auto" else row.engine,
            base=base,
            machine=store.new_id(),
            room=True,
        )
        return table.add(made)

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
    from ortet.hub.hub import Hub
    from ortet.sessions.table import SessionRow
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace

_PATH_PREFIX = "/tmp/ortet-"


def scratch_workspace(hub: Hub, row: SessionRow) -> Workspace:
    """Open the scratch workspace of a session.

    At first it has the files of the head commit, or no files.
    """
    known = hub.workspace_table.get(row.branch) or run_with_sweep_retry(
        hub, lambda: _make(hub, row)
    )
    if known.name != row.branch or not known.room:
        raise Conflict(
            "name_taken",
            f"{known.name!r} is another workspace, at {known.directory}: drop or rename it, then "
            f"session {row.name!r} can have files of its own",
        )
    return hub.workspace(name=row.branch)


def _make(hub: Hub, row: SessionRow) -> WorkspaceRow:
    _, engine = hub.resolve_files_and_engine(row.engine, "private")
    hub.check_engine(engine)
    draft = hub.workspace_table.draft(Path(_PATH_PREFIX + row.id[-12:]), "private", engine)
    with hub.writing():  # a sweep must not delete the base before the row holds it
        empty = hub.trees.empty()
        root = TreeEntry(
            name=b"",
            mode=stat.S_IFDIR | 0o755,
            mtime=hub.clock.now_ns(),
            uid=os.geteuid(),
            gid=os.getegid(),
            data=empty.oid,
            cid=empty.cid,
        )
        base = hub.objects.put(Kind.IMAGE, encode(Image(root)))
        hub.objects.flush()
        failpoint("room.before-row")
        made = replace(
            hub.workspace_table.limit(draft, row.limits, row.network),
            name=row.branch,
            scope=hub.default_scope,
            forks="" if row.engine == "auto" else row.engine,
            base=base,
            machine=hub.new_id(),
            room=True,
        )
        return hub.workspace_table.add(made)

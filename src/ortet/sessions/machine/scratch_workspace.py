"""Rooms: private files of sessions that have no directory, made when a machine is first used."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ortet._util.codec import encode
from ortet._util.failpoints import reach
from ortet.errors import Conflict
from ortet.history.records import Entry, Image
from ortet.objects.base import Kind
from ortet.store.sweep_retry import repeated

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.sessions.table import SessionRow
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace

_AT = "/tmp/ortet-"


def room_of(hub: Hub, row: SessionRow) -> Workspace:
    """The room of a session, opened; at the first time it begins with the files of the head, if
    there are any, else empty."""
    known = hub.registry.get(row.branch) or repeated(hub, lambda: _make(hub, row))
    if known.name != row.branch or not known.room:
        raise Conflict(
            "name_taken",
            f"{known.name!r} is another workspace, at {known.directory}: drop or rename it, then "
            f"session {row.name!r} can have files of its own",
        )
    return hub.workspace(name=row.branch)


def _make(hub: Hub, row: SessionRow) -> WorkspaceRow:
    _, engine = hub.how(row.engine, "private")
    hub.check_engine(engine)
    draft = hub.registry.draft(Path(_AT + row.id[-12:]), "private", engine)
    with hub.writing():  # until the row holds the base, a sweep must not take it
        empty = hub.trees.empty()
        root = Entry(
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
        reach("room.before-row")
        made = replace(
            hub.registry.limit(draft, row.limits, row.network),
            name=row.branch,
            scope=hub.scope,
            forks="" if row.engine == "auto" else row.engine,
            base=base,
            machine=hub.new_id(),
            room=True,
        )
        return hub.registry.add(made)

"""The files of an open session: its workspace, opened at first use.

Invariant: an open workspace has the commit participant of the session, so that its state is
committed and restored with the files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ortet._util.codec import encode
from ortet._util.failpoints import failpoint
from ortet.errors import Conflict, Refused
from ortet.history.records import Image, TreeEntry
from ortet.objects.base import Kind
from ortet.sessions.context import SessionContext, SessionServices
from ortet.sessions.starting import open_first_workspace
from ortet.sessions.table import SCRATCH_FILES, SessionRow, SessionTable
from ortet.store.sweep_retry import run_with_sweep_retry

if TYPE_CHECKING:
    from ortet.sessions.history.participants import OpenSessionParticipant
    from ortet.sessions.table import SessionRow
    from ortet.sessions.writing.pipeline import VerbPipeline
    from ortet.workspaces.manager import WorkspaceManager
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace


def open_workspace(services: SessionServices, row: SessionRow) -> Workspace:
    """Open the workspace of a session."""
    workspaces = services.workspaces
    if not row.path:
        return scratch_workspace(workspaces, row)
    known = workspaces.table.get(row.branch)
    if known is not None:
        return workspaces.open(name=row.branch)
    return open_first_workspace(workspaces, row)


class SessionFiles:
    """The workspace of one session handle.

    `on_attach` is called when a workspace is attached. `generated_directory` is the directory of
    the handover files in it; "" if there is none.
    """

    def __init__(
        self,
        context: SessionContext,
        pipeline: VerbPipeline,
        participant: OpenSessionParticipant,
        *,
        generated_directory: str,
        on_attach: Callable[[], object],
    ) -> None:
        self._context = context
        self._pipeline = pipeline
        self._participant = participant
        self._on_attach = on_attach
        self.generated_directory = generated_directory
        self.attached: Workspace | None = None

    @property
    def machine(self) -> Workspace:
        """Return the workspace; a session without a directory then gets an empty private one."""
        if self._context.is_replaying:
            raise replaying("use a machine")
        self._pipeline.check_open()
        return self.workspace() or self._create_scratch_workspace()

    def start(self) -> None:
        """Start the machine before the intent of an action is written, unless in a replay.

        A crash here leaves no dangling action.
        """
        if not self._context.is_replaying:
            _ = self.machine

    def workspace(self) -> Workspace | None:
        """Return the workspace, opened if the session has files, otherwise None."""
        if self.attached is None and self._context.row.has_files:
            self.attach(open_workspace(self._context.services, self._context.row))
        return self.attached

    def root(self) -> os.PathLike[str] | None:
        files = self.workspace()
        return files.path if files is not None else None

    def attach(self, files: Workspace) -> None:
        """Use `files` as the workspace of this session."""
        self.attached = files
        files.files.branch.participant = self._participant
        files.files.generated_directory = self.generated_directory
        self._on_attach()

    def close(self) -> None:
        if self.attached is not None:
            self.attached.close()

    def _create_scratch_workspace(self) -> Workspace:
        context = self._context
        files = open_workspace(context.services, context.row)
        failpoint("room.before-session")
        row = msgspec.structs.replace(context.row, files=SCRATCH_FILES)
        context.store.catalog.move(
            [],
            verb="room",
            actor=context.store.author,
            lease=self._pipeline.held_lease.lease,
            rows=[SessionTable.update_change(row)],
        )
        context.set_row(row)
        self.attach(files)
        return files


def replaying(verb: str) -> Refused:
    """Return the error of a verb that a replay cannot do."""
    return Refused(
        "replaying",
        f"a replay cannot {verb}: it changes nothing; open the session without replay=, or with "
        "replay='live' to go on from where it differs",
    )


# Scratch workspaces: private files of sessions without a directory, made at first use.


_PATH_PREFIX = "/tmp/ortet-"


def scratch_workspace(workspaces: WorkspaceManager, row: SessionRow) -> Workspace:
    """Open the scratch workspace of a session.

    At first it has the files of the head commit, or no files.
    """
    known = workspaces.table.get(row.branch) or run_with_sweep_retry(
        workspaces.store, lambda: _add_scratch_workspace(workspaces, row)
    )
    if known.name != row.branch or not known.room:
        raise Conflict(
            "name_taken",
            f"{known.name!r} is another workspace, at {known.directory}: drop or rename it, then "
            f"session {row.name!r} can have files of its own",
        )
    return workspaces.open(name=row.branch)


def _add_scratch_workspace(workspaces: WorkspaceManager, row: SessionRow) -> WorkspaceRow:
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

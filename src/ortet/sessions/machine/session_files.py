"""The files of an open session: its workspace, opened at first use.

Invariant: an open workspace has the commit participant of the session, so that its state is
committed and restored with the files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ortet._util.failpoints import failpoint
from ortet.errors import Refused
from ortet.sessions.context import SessionContext, SessionServices
from ortet.sessions.starting import open_first_workspace
from ortet.sessions.table import SCRATCH_FILES, SessionRow, SessionTable

if TYPE_CHECKING:
    from ortet.sessions.history.participants import OpenSessionParticipant
    from ortet.sessions.writing.pipeline import VerbPipeline
    from ortet.workspaces.workspace import Workspace


def open_workspace(services: SessionServices, row: SessionRow) -> Workspace:
    """Open the workspace of a session."""
    workspaces = services.workspaces
    if not row.path:
        from ortet.sessions.machine.scratch_workspace import scratch_workspace

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

"""The branch of a workspace: its head, the state of the head, and how the head moves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import encode
from ortet.backends.base import Head, Move
from ortet.errors import Conflict, NotFound, OrtetError
from ortet.history import records
from ortet.history.refs import Ref
from ortet.ids import Oid, to_hex
from ortet.objects.base import Kind
from ortet.store.commit import put_commit
from ortet.workspaces.commit_participant import NO_EXTRAS, CommitParticipant, TransactionExtras
from ortet.workspaces.table import WorkspaceRow

if TYPE_CHECKING:
    from ortet.hub.hub import Hub


class WorkspaceBranchMixin:
    """The part of Workspace that knows its branch.

    `participant` is the session state that is committed with the files.
    """

    def __init__(self, hub: Hub, row: WorkspaceRow) -> None:
        self.hub = hub
        self.row = row
        self.participant: CommitParticipant = hub.commit_participant(row.name)
        self._head: Head | None = None
        self._head_state: bytes = b""
        self._head_journal: bytes = b""  # journal of the head
        self._head_memory: bytes = b""  # memory of the head
        self._new_journal: bytes = b""  # journal of the commit being made
        self._moves = 0
        self._secrets_in_use: list[list[str]] = []  # secrets of running commands
        self.refresh_head()

    @property
    def name(self) -> str:
        """Return the name of the workspace, which is that of its branch."""
        return self.row.name

    def resolve(self, ref: Ref) -> Oid:
        """Return the commit that `ref` means here. HEAD is the head of this branch."""
        return self.hub.refs.resolve(ref, default_branch=self.name)

    def rename(self, name: str) -> None:
        """Take the new name of the branch and its workspace."""
        self.row = msgspec.structs.replace(self.row, name=name)
        self.refresh_head()

    def refresh_head(self) -> None:
        """Read the head of the branch, which another process may have moved."""
        self._head = self.hub.catalog.head(f"branch:{self.name}")
        self._load_head_state(self._head.oid if self._head else None)

    def _load_head_state(self, commit: Oid | None) -> None:
        """Cache the state of the head."""
        self._head_state = self.hub.history.read(commit).state if commit else b""
        state = self.hub.history.state(commit) if commit else records.State()
        self._head_journal, self._head_memory = state.journal, state.memory

    def _put_state(self, image: Oid) -> Oid:
        """Store a State record of these files and the session state, and return its id."""
        self._new_journal = self.participant.seal_journal(self._head_journal)
        memory = self.participant.seal_memory(self._head_memory)
        # an empty scratch workspace counts as no files
        held = b"" if image == self.row.empty_image else image
        return self.hub.objects.put(
            Kind.STATE, encode(records.State(self._new_journal, memory, held))
        )

    def image_oid(self, commit: Oid) -> Oid:
        """Return the image that this workspace restores for a commit."""
        return self.hub.image_oid(commit, self.row.empty_image)

    def image_at(self, commit: Oid) -> records.Image:
        """Return the image of a commit."""
        return self.hub.read_image(self.image_oid(commit))

    def _image_to_restore(self, target: Oid, *, processes: bool) -> Oid:
        """Return the image to restore.

        Without `processes` it has the head's processes, which run.
        """
        oid = self.image_oid(target)
        if processes or self._head is None:
            return oid
        image, here = self.hub.read_image(oid), self.image_at(self._head.oid)
        if image.processes == here.processes:
            return oid
        mixed = msgspec.structs.replace(image, processes=here.processes)
        return self.hub.objects.put(Kind.IMAGE, encode(mixed))

    def _put_commit(self, state: Oid, message: str, parents: list[Oid]) -> Oid:
        """Store a commit that no branch refers to yet."""
        hub = self.hub
        return put_commit(
            hub.objects,
            hub.history,
            state=state,
            parents=parents,
            message=message,
            clock=hub.clock,
            author=hub.author,
        )

    def _is_head_state(self, state: Oid) -> bool:
        """Return True if the head has this state. The head is read again from the catalog.

        Raises:
            Conflict: "head_moved" if another process moved the head to another state.
        """
        if self._head is None or state != self._head_state:
            return False
        now = self.hub.catalog.head(self._head.name)
        if now is None or now.oid != self._head.oid:
            moved = self._head_moved_error()
            if state != self._head_state:
                raise moved
        return True

    def _move(
        self,
        steps: Sequence[tuple[Oid | None, Oid]],
        verb: str,
        detail: str,
        extras: TransactionExtras = NO_EXTRAS,
    ) -> None:
        """Move the branch in one transaction. Each step is an entry of the reflog."""
        hub, name = self.hub, f"branch:{self.name}"
        moves = [Move(name, before, after) for before, after in steps]
        try:
            hub.catalog.move(
                moves,
                verb=verb,
                actor=hub.author,
                detail=detail,
                lease=extras.lease or self.participant.lease(),
                rows=extras.rows,
                timelines=extras.timelines,
                appends=extras.appends,
            )
        except Conflict as error:
            if error.kind == "swept":
                raise
            raise self._head_moved_error() from error
        self._head = Head(name=name, oid=steps[-1][1], version=0, time=0)
        self._moves += 1
        with suppress(OSError):  # only a hint; the move is done
            hub.signal.notify(name)

    def commit_to_reflog(self, image: Oid, parent: Oid | None, message: str) -> None:
        """Save files that were based on `parent` as a reflog entry.

        Call inside `exclusive_access`.
        """
        state, head = self._put_state(image), self._head
        found = self._put_commit(state, message, [parent] if parent else [])
        if head is not None:
            self._move([(head.oid, found), (found, head.oid)], "restore", message)

    def _head_moved_error(self) -> OrtetError:
        """Return the error for a branch that another process moved, and read the new head."""
        if self.hub.workspace_table.get(self.name) is None:
            return NotFound(
                "no_workspace",
                f"workspace {self.name!r} was renamed or dropped by another process; your files "
                "are untouched: close it and open the directory again",
            )
        self.refresh_head()
        now = to_hex(self._head.oid)[:12] if self._head else "nothing"
        return Conflict(
            "head_moved",
            f"branch {self.name!r} was moved to {now} by another process; your files are "
            f"untouched: repeat the call to go on from there, or restore {now} first",
            name=self.name,
        )

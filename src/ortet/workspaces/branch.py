"""The branch of a workspace: its head, the state of the head, and how the head moves."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ortet._util.codec import encode
from ortet.backends.base import Head, Move
from ortet.errors import Conflict, NotFound, OrtetError
from ortet.history import records
from ortet.history.refs import Ref
from ortet.ids import Oid, to_hex
from ortet.objects.base import Kind
from ortet.store.commit import put_commit
from ortet.store.context import StoreContext
from ortet.workspaces.commit_participant import NO_EXTRAS, CommitParticipant, TransactionExtras
from ortet.workspaces.table import WorkspaceRow


class WorkspaceBranch:
    """The branch of an open workspace.

    `participant` is the session state that is committed with the files.
    """

    def __init__(
        self, store: StoreContext, row: WorkspaceRow, participant: CommitParticipant
    ) -> None:
        self.store = store
        self.row = row
        self.participant = participant
        self.head: Head | None = None
        self.moves = 0  # number of times that this handle has moved the branch
        self._head_state: bytes = b""
        self._head_journal: bytes = b""  # journal of the head
        self._head_memory: bytes = b""  # memory of the head
        self._new_journal: bytes = b""  # journal of the commit being made
        self._new_memory: bytes = b""  # memory of the commit being made
        self.refresh_head()

    @property
    def name(self) -> str:
        """Return the name of the workspace, which is that of its branch."""
        return self.row.name

    def resolve(self, ref: Ref) -> Oid:
        """Return the commit that `ref` means here. HEAD is the head of this branch."""
        return self.store.refs.resolve(ref, default_branch=self.name)

    def rename(self, name: str) -> None:
        """Take the new name of the branch and its workspace."""
        self.row = msgspec.structs.replace(self.row, name=name)
        self.refresh_head()

    def refresh_head(self) -> None:
        """Read the head of the branch, which another process may have moved."""
        self.head = self.store.catalog.head(f"branch:{self.name}")
        self.load_head_state(self.head.oid if self.head else None)

    def load_head_state(self, commit: Oid | None) -> None:
        """Cache the state of the head."""
        self._head_state = self.store.history.read(commit).state if commit else b""
        state = self.store.history.state(commit) if commit else records.State()
        self._head_journal, self._head_memory = state.journal, state.memory

    def put_state(self, image: Oid) -> Oid:
        """Store a State record of these files and the session state, and return its id."""
        self._new_journal = self.participant.seal_journal(self._head_journal)
        self._new_memory = self.participant.seal_memory(self._head_memory)
        # an empty scratch workspace counts as no files
        held = b"" if image == self.row.empty_image else image
        state = records.State(self._new_journal, self._new_memory, held)
        return self.store.objects.put(Kind.STATE, encode(state))

    def image_oid(self, commit: Oid) -> Oid:
        """Return the image that this workspace restores for a commit."""
        return self.store.image_oid(commit, self.row.empty_image)

    def image_at(self, commit: Oid) -> records.Image:
        """Return the image of a commit."""
        return self.store.read_image(self.image_oid(commit))

    def image_to_restore(self, target: Oid, *, processes: bool) -> Oid:
        """Return the image to restore.

        Without `processes` it has the head's processes, which run.
        """
        oid = self.image_oid(target)
        if processes or self.head is None:
            return oid
        image, here = self.store.read_image(oid), self.image_at(self.head.oid)
        if image.processes == here.processes:
            return oid
        mixed = msgspec.structs.replace(image, processes=here.processes)
        return self.store.objects.put(Kind.IMAGE, encode(mixed))

    def put_commit(self, state: Oid, message: str, parents: list[Oid]) -> Oid:
        """Store a commit that no branch refers to yet."""
        store = self.store
        return put_commit(
            store.objects,
            store.history,
            state=state,
            parents=parents,
            message=message,
            clock=store.clock,
            author=store.author,
        )

    def is_head_state(self, state: Oid) -> bool:
        """Return True if the head has this state. The head is read again from the catalog.

        Raises:
            Conflict: "head_moved" if another process moved the head to another state.
        """
        if self.head is None or state != self._head_state:
            return False
        now = self.store.catalog.head(self.head.name)
        if now is None or now.oid != self.head.oid:
            moved = self._head_moved_error()
            if state != self._head_state:
                raise moved
        return True

    def move(
        self,
        steps: Sequence[tuple[Oid | None, Oid]],
        verb: str,
        detail: str,
        extras: TransactionExtras = NO_EXTRAS,
    ) -> None:
        """Move the branch in one transaction. Each step is an entry of the reflog."""
        store, name = self.store, f"branch:{self.name}"
        moves = [Move(name, before, after) for before, after in steps]
        try:
            store.catalog.move(
                moves,
                verb=verb,
                actor=store.author,
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
        self.head = Head(name=name, oid=steps[-1][1], version=0, time=0)
        self.moves += 1
        store.notify(name)

    def mark_committed(self, state: Oid) -> None:
        """Accept that the commit with this state, made last by `put_state`, is the head now."""
        self._head_state = state
        self._head_journal, self._head_memory = self._new_journal, self._new_memory

    def _head_moved_error(self) -> OrtetError:
        """Return the error for a branch that another process moved, and read the new head."""
        if self.store.catalog.row("workspace", self.name) is None:
            return NotFound(
                "no_workspace",
                f"workspace {self.name!r} was renamed or dropped by another process; your files "
                "are untouched: close it and open the directory again",
            )
        self.refresh_head()
        now = to_hex(self.head.oid)[:12] if self.head else "nothing"
        return Conflict(
            "head_moved",
            f"branch {self.name!r} was moved to {now} by another process; your files are "
            f"untouched: repeat the call to go on from there, or restore {now} first",
            name=self.name,
        )

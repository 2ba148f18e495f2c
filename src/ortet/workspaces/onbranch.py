"""The branch a workspace is on: where it is, what its head holds, and how it moves on."""

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
    """What a workspace knows of its branch. `company` is the mind that goes with its files."""

    def __init__(self, hub: Hub, row: WorkspaceRow) -> None:
        self.hub = hub
        self.row = row
        self.participant: CommitParticipant = hub.commit_participant(row.name)
        self._head: Head | None = None
        self._head_state: bytes = b""
        self._head_journal: bytes = b""  # of the head
        self._head_memory: bytes = b""  # likewise
        self._new_journal: bytes = b""  # of the commit that is being made
        self._moves = 0
        self._secrets_in_use: list[list[str]] = []  # secrets of commands that run
        self.refresh_head()

    @property
    def name(self) -> str:
        return self.row.name

    def resolve(self, ref: Ref) -> Oid:
        """The commit that `ref` means here, where HEAD is this branch."""
        return self.hub.refs.resolve(ref, default_branch=self.name)

    def rename(self, name: str) -> None:
        """The branch, and this workspace with it, has another name now."""
        self.row = msgspec.structs.replace(self.row, name=name)
        self.refresh_head()

    def refresh_head(self) -> None:
        """See where the branch is now, whoever moved it."""
        self._head = self.hub.catalog.head(f"branch:{self.name}")
        self._load_head_state(self._head.oid if self._head else None)

    def _load_head_state(self, commit: Oid | None) -> None:
        """Remember what the head holds."""
        self._head_state = self.hub.history.read(commit).state if commit else b""
        state = self.hub.history.state(commit) if commit else records.State()
        self._head_journal, self._head_memory = state.journal, state.memory

    def _put_state(self, image: Oid) -> Oid:
        """These files, and the mind that goes with them."""
        self._new_journal = self.participant.seal_journal(self._head_journal)
        memory = self.participant.seal_memory(self._head_memory)
        held = b"" if image == self.row.empty_image else image  # an empty room is no files at all
        return self.hub.objects.put(
            Kind.STATE, encode(records.State(self._new_journal, memory, held))
        )

    def image_oid(self, commit: Oid) -> Oid:
        """The image of a commit, as this workspace would restore it."""
        return self.hub.image_oid(commit, self.row.empty_image)

    def image_at(self, commit: Oid) -> records.Image:
        return self.hub.read_image(self.image_oid(commit))

    def _image_to_restore(self, target: Oid, *, processes: bool) -> Oid:
        """The image of a commit; without its `processes`, with those of the head, which run."""
        oid = self.image_oid(target)
        if processes or self._head is None:
            return oid
        image, here = self.hub.read_image(oid), self.image_at(self._head.oid)
        if image.processes == here.processes:
            return oid
        mixed = msgspec.structs.replace(image, processes=here.processes)
        return self.hub.objects.put(Kind.IMAGE, encode(mixed))

    def _put_commit(self, state: Oid, message: str, parents: list[Oid]) -> Oid:
        """A commit on disk, that no branch has yet."""
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
        """Whether the head has this state already: the head as it is, not as it was last seen."""
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
        """Move the branch, step by step in the reflog and at once for everybody else."""
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
        with suppress(OSError):  # a hint, and the deed is done
            hub.signal.notify(name)

    def commit_to_reflog(self, image: Oid, parent: Oid | None, message: str) -> None:
        """Within `moving`: files that were at this commit once, into the reflog only."""
        state, head = self._put_state(image), self._head
        found = self._put_commit(state, message, [parent] if parent else [])
        if head is not None:
            self._move([(head.oid, found), (found, head.oid)], "restore", message)

    def _head_moved_error(self) -> OrtetError:
        """What to say when the branch is not where it was; from now on it is where it is."""
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

"""The branch of a session without open files: commits and moves by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ortet._util.codec import encode
from ortet._util.failpoints import failpoint
from ortet.backends.base import Append, Catalog, Head, Lease, Move, RowChange, Timeline
from ortet.errors import Conflict
from ortet.history.commits import CommitInfo, History
from ortet.history.records import State
from ortet.ids import Clock, Oid, to_hex
from ortet.objects.base import Kind
from ortet.objects.store import PackedObjectStore
from ortet.store.commit import put_commit


class BranchWriter:
    """Moves one branch.

    `head` and `state` are as last read. If another process moves the branch, the next move fails
    with Conflict.
    """

    def __init__(
        self,
        catalog: Catalog,
        objects: PackedObjectStore,
        history: History,
        *,
        name: str,
        clock: Clock,
        author: str,
        on_move: Callable[[str], None] = lambda _: None,
        head: Oid | None = None,
    ) -> None:
        self.name = name
        self.head = head
        self.state: bytes = b""
        self._catalog = catalog
        self._objects = objects
        self._history = history
        self._clock = clock
        self._author = author
        self._on_move = on_move
        if head is None:
            self.refresh_head()
        else:  # the caller has just created the branch
            self.state = history.read(head).state

    def refresh_head(self) -> None:
        """Read the head, which another process may have moved."""
        found: Head | None = self._catalog.head(f"branch:{self.name}")
        self.head = found.oid if found else None
        self.state = self._history.read(self.head).state if self.head else b""

    def record(
        self,
        state: State,
        message: str,
        *,
        parents: Sequence[Oid] = (),
        verb: str = "commit",
        lease: Lease | None = None,
    ) -> CommitInfo:
        """Commit a state. Return the head if it already has this state."""
        oid = self._objects.put(Kind.STATE, encode(state))
        if not parents and self.head is not None and oid == self.state:
            return self._history.info(self.head)
        new = put_commit(
            self._objects,
            self._history,
            state=oid,
            parents=list(parents) or ([self.head] if self.head else []),
            message=message,
            clock=self._clock,
            author=self._author,
        )
        self.move(new, verb, self._history.read(new).message, lease=lease)
        failpoint("commit.after-move")
        self.state = oid
        return self._history.info(new)

    def move(
        self,
        to: Oid,
        verb: str,
        detail: str,
        *,
        lease: Lease | None = None,
        rows: Sequence[RowChange] = (),
        timelines: Sequence[Timeline] = (),
        appends: Sequence[Append] = (),
    ) -> None:
        """Move the branch in one transaction with the given changes.

        Raises:
            Conflict: "head_moved" if another process moved it first. The new head is then loaded.
        """
        name = f"branch:{self.name}"
        try:
            self._catalog.move(
                [Move(name, self.head, to)],
                verb=verb,
                actor=self._author,
                detail=detail,
                lease=lease,
                rows=rows,
                timelines=timelines,
                appends=appends,
            )
        except Conflict as error:
            if error.kind != "head_moved":
                raise
            self.refresh_head()
            now = to_hex(self.head)[:12] if self.head else "nothing"
            raise Conflict(
                "head_moved",
                f"branch {self.name!r} was moved to {now} by another process: repeat the call to "
                f"go on from there, or restore {now} first",
                name=self.name,
            ) from error
        self.head = to
        self._on_move(name)

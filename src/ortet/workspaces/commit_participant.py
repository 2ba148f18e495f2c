"""The contract between a workspace and the session state that is committed with its files.

A `CommitParticipant` takes part in each commit and each restore of a workspace. An open session
uses `OpenSessionParticipant`; a session that this process has not opened uses
`DetachedSessionParticipant`. A workspace without a session uses `NoParticipant`.

Order of calls:

- commit: `seal_journal`, `seal_memory`, then `committed` after the branch has moved;
- restore: `begin_restore`, then `prepare_move` and `finish_move`, or `abort_restore` on failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import msgspec

from ortet._util.failpoints import failpoint
from ortet.backends.base import Append, Catalog, Lease, LeaseClaim, RowChange, Timeline
from ortet.ids import Oid
from ortet.journal.state.records import Effect
from ortet.workspaces.results import UnavailableSecret


class TransactionExtras(msgspec.Struct, frozen=True):
    """Catalog changes to write in the same transaction that moves a branch."""

    lease: Lease | None = None
    rows: list[RowChange] = []
    timelines: list[Timeline] = []
    claims: list[LeaseClaim] = []
    appends: list[Append] = []


NO_EXTRAS = TransactionExtras()

BranchExtras = Callable[[Sequence[str]], TransactionExtras]
"""Return the catalog changes that belong to new branches, given the names of these branches."""


class CommitParticipant(Protocol):
    """Session state that is committed and restored together with the files of a workspace."""

    def exclusive(self) -> AbstractContextManager[Any]:
        """Return a block in which no event is added, from `seal_journal` to `committed`."""
        ...

    def seal_journal(self, head_journal: bytes) -> bytes:
        """Store the new events and return the Journal record id for the commit being made.

        Args:
            head_journal: the Journal of the head commit. It is returned if there is nothing new.
        """
        ...

    def seal_memory(self, head_memory: bytes) -> bytes:
        """Return the Memory record id for the same commit. Called after `seal_journal`.

        Args:
            head_memory: the Memory of the head commit. It is returned if there is nothing new.
        """
        ...

    def committed(self) -> None:
        """Accept that the commit being made is now the head."""
        ...

    def begin_restore(self, safety: Oid) -> None:
        """Record durably that the files are about to leave the commit `safety`.

        If the process dies before the branch moves, the next open restores the files to `safety`.
        """
        ...

    def abort_restore(self) -> None:
        """Remove the pending-restore record: the files are those of `safety` again."""
        ...

    def prepare_move(self, target: Oid) -> TransactionExtras:
        """Return the changes to write in the transaction that moves the branch to `target`."""
        ...

    def finish_move(self) -> None:
        """Switch the in-memory state to the new position: the branch has moved."""
        ...

    def lease(self) -> Lease | None:
        """Return the lease that a move of the branch must present, or None."""
        ...

    def variables(self) -> Mapping[str, str | None]:
        """Return the environment variables to set for commands. None unsets a variable."""
        ...

    def unrestorable_since(self, commit: Oid) -> tuple[list[Effect], list[UnavailableSecret]]:
        """Return what a restore to `commit` cannot undo or restore.

        Returns:
            Effects on the outside world since the commit, and secrets that the commit refers to and
                that are not available here.
        """
        ...

    def count_forgotten(self, commit: Oid, since: Oid | None = None) -> int:
        """Return the number of events that the state loses by a restore of `commit`.

        Args:
            commit: the commit to restore.
            since: count from this commit; None counts from the present state.
        """
        ...


class NoParticipant:
    """Participant of a workspace without a session.

    A commit keeps the journal and memory of the head commit unchanged.
    """

    def exclusive(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def seal_journal(self, head_journal: bytes) -> bytes:
        return head_journal

    def seal_memory(self, head_memory: bytes) -> bytes:
        return head_memory

    def committed(self) -> None: ...

    def begin_restore(self, safety: Oid) -> None:
        del safety  # no session state can disagree with the files, so nothing is recorded

    def abort_restore(self) -> None: ...

    def prepare_move(self, target: Oid) -> TransactionExtras:
        del target
        return TransactionExtras()

    def finish_move(self) -> None: ...

    def lease(self) -> Lease | None:
        return None

    def variables(self) -> Mapping[str, str | None]:
        return {}

    def unrestorable_since(self, commit: Oid) -> tuple[list[Effect], list[UnavailableSecret]]:
        del commit
        return [], []

    def count_forgotten(self, commit: Oid, since: Oid | None = None) -> int:
        del commit, since
        return 0


# The record of an interrupted restore: `begin_restore` writes it, the move of the branch clears it.

_PENDING_RESTORE = "going"
"""Row kind of the pending-restore record: files have moved, the branch has not yet."""


def pending_restore(catalog: Catalog, branch: str) -> Oid | None:
    """Return the commit recorded before an interrupted restore, or None.

    If present, the workspace files must be restored to it.
    """
    row = catalog.row(_PENDING_RESTORE, branch)
    return Oid(row.value) if row else None


def mark_restore_pending(catalog: Catalog, branch: str, safety: Oid) -> None:
    catalog.put_row(_PENDING_RESTORE, branch, safety)
    failpoint("restore.going")


def clear_restore_pending(catalog: Catalog, branch: str) -> None:
    catalog.drop_row(_PENDING_RESTORE, branch)


def clear_restore_pending_row(branch: str) -> RowChange:
    """Return the row change that clears the pending-restore record, for the branch transaction."""
    return RowChange(_PENDING_RESTORE, branch, None)

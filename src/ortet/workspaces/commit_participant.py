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
from typing import Protocol

import msgspec

from ortet.backends.base import Append, Lease, LeaseClaim, RowChange, Timeline
from ortet.ids import Oid


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


class NoParticipant:
    """Participant of a workspace without a session.

    A commit keeps the journal and memory of the head commit unchanged.
    """

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

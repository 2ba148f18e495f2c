"""Who goes with a workspace's files when they are committed or restored: a mind, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from ortet.backends.base import Append, Lease, LeaseClaim, RowChange, Timeline
from ortet.ids import Oid


class TransactionExtras(msgspec.Struct, frozen=True):
    """What has to be written in the transaction that moves a branch."""

    lease: Lease | None = None
    rows: list[RowChange] = []
    timelines: list[Timeline] = []
    claims: list[LeaseClaim] = []
    appends: list[Append] = []


NO_EXTRAS = TransactionExtras()

BranchExtras = Callable[[Sequence[str]], TransactionExtras]
"""What is to be written with new branches, by their names."""


class CommitParticipant(Protocol):
    """Who goes with a workspace's files."""

    def seal_journal(self, head_journal: bytes) -> bytes:
        """The Journal for a commit that is about to be made; `head` is that of the head."""
        ...

    def seal_memory(self, head_memory: bytes) -> bytes:
        """The Memory for that commit, asked after its journal; `head` is that of the head."""
        ...

    def committed(self) -> None:
        """That commit is the head now."""
        ...

    def begin_restore(self, safety: Oid) -> None:
        """The files are about to leave the commit `safety`: until the branch has followed them, a
        kill leaves files its mind does not know, and whoever opens them next brings them back."""
        ...

    def abort_restore(self) -> None:
        """They have not gone: they are those of `safety` again."""
        ...

    def prepare_move(self, target: Oid) -> TransactionExtras:
        """The branch is about to go to another commit."""
        ...

    def finish_move(self) -> None:
        """It has gone there."""
        ...

    def lease(self) -> Lease | None:
        """What a move of the branch has to show."""
        ...

    def variables(self) -> Mapping[str, str | None]:
        """What commands are given over this process's environment; None unsets."""
        ...


class NoParticipant:
    """A workspace without a session: a mind that a commit holds is carried along."""

    def seal_journal(self, head_journal: bytes) -> bytes:
        return head_journal

    def seal_memory(self, head_memory: bytes) -> bytes:
        return head_memory

    def committed(self) -> None: ...

    def begin_restore(self, safety: Oid) -> None:
        del safety  # without a mind, files of before or after are all there is to be right

    def abort_restore(self) -> None: ...

    def prepare_move(self, target: Oid) -> TransactionExtras:
        del target
        return TransactionExtras()

    def finish_move(self) -> None: ...

    def lease(self) -> Lease | None:
        return None

    def variables(self) -> Mapping[str, str | None]:
        return {}

"""Who goes with a workspace's files when they are committed or restored: a mind, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from ortet.backends.base import Append, Claim, Lease, RowChange, Timeline
from ortet.ids import Oid


class Together(msgspec.Struct, frozen=True):
    """What has to be written in the transaction that moves a branch."""

    lease: Lease | None = None
    rows: list[RowChange] = []
    timelines: list[Timeline] = []
    claims: list[Claim] = []
    appends: list[Append] = []


ALONE = Together()

Minds = Callable[[Sequence[str]], Together]
"""What is to be written with new branches, by their names."""


class Company(Protocol):
    """Who goes with a workspace's files."""

    def journal(self, head: bytes) -> bytes:
        """The Journal for a commit that is about to be made; `head` is that of the head."""
        ...

    def memory(self, head: bytes) -> bytes:
        """The Memory for that commit, asked after its journal; `head` is that of the head."""
        ...

    def recorded(self) -> None:
        """That commit is the head now."""
        ...

    def going(self, safety: Oid) -> None:
        """The files are about to leave the commit `safety`: until the branch has followed them, a
        kill leaves files its mind does not know, and whoever opens them next brings them back."""
        ...

    def stayed(self) -> None:
        """They have not gone: they are those of `safety` again."""
        ...

    def leaving(self, target: Oid) -> Together:
        """The branch is about to go to another commit."""
        ...

    def arrived(self) -> None:
        """It has gone there."""
        ...

    def lease(self) -> Lease | None:
        """What a move of the branch has to show."""
        ...

    def variables(self) -> Mapping[str, str | None]:
        """What commands are given over this process's environment; None unsets."""
        ...


class Nobody:
    """A workspace without a session: a mind that a commit holds is carried along."""

    def journal(self, head: bytes) -> bytes:
        return head

    def memory(self, head: bytes) -> bytes:
        return head

    def recorded(self) -> None: ...

    def going(self, safety: Oid) -> None:
        del safety  # without a mind, files of before or after are all there is to be right

    def stayed(self) -> None: ...

    def leaving(self, target: Oid) -> Together:
        del target
        return Together()

    def arrived(self) -> None: ...

    def lease(self) -> Lease | None:
        return None

    def variables(self) -> Mapping[str, str | None]:
        return {}

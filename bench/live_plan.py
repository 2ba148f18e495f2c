"""One run of the live rows: how often, how large, where."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Counts(msgspec.Struct, frozen=True):
    small: int  # forks and commits of small machines
    large: int  # of the one of `mib`
    mib: int
    huge: int  # MiB of the machine that is only shown to work


FULL = Counts(small=40, large=7, mib=512, huge=4096)
QUICK = Counts(small=2, large=2, mib=16, huge=32)


class Plan(msgspec.Struct, frozen=True):
    """`peers`: measure raw CRIU and fork(2) too."""

    place: Path
    counts: Counts
    only: frozenset[str] = frozenset()
    peers: bool = True

    def wants(self, *rows: str) -> bool:
        return not self.only or not self.only.isdisjoint(rows)

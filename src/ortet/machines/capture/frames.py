"""The pieces of a scan: what to look at (Dirty, Plan), one directory being looked at (Frame)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from ortet.history.records import Entry
from ortet.machines.capture.entry import CLOSED, GONE
from ortet.machines.capture.seen import Node


class Dirty(msgspec.Struct, frozen=True):
    """What may have changed since the last scan.

    `names`: directory (relative, b"" the root) -> names in it to look at, None: list it again.
    `whole`: directories that came new to their place: all below them is looked at.
    `held`: paths that were written to and are still open for writing.
    """

    names: dict[bytes, set[bytes] | None]
    whole: set[bytes] = set()
    held: set[bytes] = set()


class Plan:
    """Which names of a directory to look at (None: all), and the plans of those below it.

    `whole`: everything in it, down to the leaves.
    """

    __slots__ = ("below", "names", "whole")

    def __init__(self) -> None:
        self.whole = False
        self.names: set[str] | None = set()
        self.below: dict[str, Plan] = {}

    def add(self, names: Mapping[bytes, Iterable[bytes] | None]) -> None:
        for path, some in names.items():
            plan = self.at(path)
            if some is None:
                plan.names = None
            elif plan.names is not None:
                plan.names.update(map(os.fsdecode, some))

    def at(self, path: bytes) -> Plan:
        """The plan of a directory below."""
        plan = self
        for name in os.fsdecode(path).split("/") if path else ():
            plan = plan.below.get(name) or plan.below.setdefault(name, Plan())
        return plan


class Sub(NamedTuple):
    """A directory to enter: without a plan all of it, without a stat as one that is unchanged."""

    name: str
    st: os.stat_result | None
    plan: Plan | None


class Frame:
    """A directory that is being looked at; with no plan all of it, down to the leaves."""

    __slots__ = ("changes", "fd", "meta", "name", "new", "node", "path", "plan", "subs")

    def __init__(self, node: Node, path: bytes, *, fd: int, name: str, plan: Plan | None) -> None:
        self.node = node
        self.path = path
        self.fd = fd
        self.name = name
        self.plan = plan
        self.meta: Entry | None = None  # its own Entry, still without a tree, if its stat changed
        self.new = False  # the directory above does not hold it yet
        self.changes: dict[bytes, Entry | None] = {}
        self.subs: list[Sub] = []

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Found(NamedTuple):
    """What a look at a directory found different from its node."""

    fresh: list[tuple[str, os.stat_result]]  # a new name, or a stat that is not as it was
    gone: set[str]
    closed: list[tuple[str, OSError]]  # there, but not to be looked at


def list_all(frame: Frame) -> Found:
    """Compare every name. The loop all of an unchanged workspace goes through: keep it short."""
    known = frame.node.seen
    get = known.get
    names: list[str] = []
    found = Found([], set(), [])
    fresh = found.fresh
    with os.scandir(frame.fd) as listing:
        for item in listing:
            try:
                st = item.stat(follow_symlinks=False)
            except OSError as error:
                _missed(found, item.name, error)
                continue
            name = item.name
            names.append(name)
            if get(name) != (*st[:7], st.st_mtime_ns, st.st_ctime_ns):
                fresh.append((name, st))
    if len(names) != len(known) or fresh or found.closed:
        found.gone.update(known.keys() - set(names))
        found.gone.difference_update(name for name, _ in found.closed)
    return found


def look_at(frame: Frame, names: Iterable[str]) -> Found:
    """Compare only these names."""
    get = frame.node.seen.get
    found = Found([], set(), [])
    for name in names:
        try:
            st = os.stat(name, dir_fd=frame.fd, follow_symlinks=False)
        except OSError as error:
            _missed(found, name, error)
            if get(name) is not None and error.errno in GONE:
                found.gone.add(name)
            continue
        if get(name) != (*st[:7], st.st_mtime_ns, st.st_ctime_ns):
            found.fresh.append((name, st))
    return found


def _missed(found: Found, name: str, error: OSError) -> None:
    if error.errno in CLOSED:
        found.closed.append((name, error))
    elif error.errno not in GONE:
        raise error

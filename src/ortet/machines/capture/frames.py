"""Data types of a scan: which names to look at, and the directory that is being scanned."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from ortet.history.records import TreeEntry
from ortet.machines.capture.entry import GONE_ERRNOS, UNREADABLE_ERRNOS
from ortet.machines.capture.stat_index import DirectoryNode


class DirtyPaths(msgspec.Struct, frozen=True):
    """The paths that may have changed since the last scan.

    Attributes:
        names: Directory (relative, b"" is the root) -> names to compare; None: list it again.
        whole: New directories; everything below them is scanned.
        closed: Files that were closed after being open for writing, without any write before. They
            may have been written through a memory mapping, so their content is compared.
    """

    names: dict[bytes, set[bytes] | None]
    whole: set[bytes] = set()
    closed: set[bytes] = set()


class ScanPlan:
    """The names of a directory to look at (None: all), and the plans of its subdirectories.

    `is_recursive`: scan everything below the directory.
    """

    __slots__ = ("children", "is_recursive", "names")

    def __init__(self) -> None:
        self.is_recursive = False
        self.names: set[str] | None = set()
        self.children: dict[str, ScanPlan] = {}

    def add(self, names: Mapping[bytes, Iterable[bytes] | None]) -> None:
        for path, some in names.items():
            plan = self.subplan(path)
            if some is None:
                plan.names = None
            elif plan.names is not None:
                plan.names.update(map(os.fsdecode, some))

    def subplan(self, path: bytes) -> ScanPlan:
        """Return the plan of the directory at `path`, and create it if it is missing."""
        plan = self
        for name in os.fsdecode(path).split("/") if path else ():
            plan = plan.children.get(name) or plan.children.setdefault(name, ScanPlan())
        return plan


class PendingDirectory(NamedTuple):
    """A directory to enter. Without a plan all of it is scanned; without a stat it is unchanged."""

    name: str
    st: os.stat_result | None
    plan: ScanPlan | None


class DirectoryScan:
    """A directory that is being scanned. Without a plan everything below it is scanned."""

    __slots__ = ("changes", "fd", "is_new", "meta", "name", "node", "path", "pending", "plan")

    def __init__(
        self, node: DirectoryNode, path: bytes, *, fd: int, name: str, plan: ScanPlan | None
    ) -> None:
        self.node = node
        self.path = path
        self.fd = fd
        self.name = name
        self.plan = plan
        self.meta: TreeEntry | None = (
            None  # its own Entry, still without a tree, if its stat changed
        )
        self.is_new = False  # not yet in the parent directory
        self.changes: dict[bytes, TreeEntry | None] = {}
        self.pending: list[PendingDirectory] = []

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class DirectoryChanges(NamedTuple):
    """The differences between a directory and its node."""

    changed: list[tuple[str, os.stat_result]]  # a new name, or another stat
    removed: set[str]
    unreadable: list[tuple[str, OSError]]  # it exists, but its stat failed


def compare_all(frame: DirectoryScan) -> DirectoryChanges:
    """Compare every name of a directory. This is the hot loop for an unchanged workspace."""
    known = frame.node.stats
    get = known.get
    names: list[str] = []
    changes = DirectoryChanges([], set(), [])
    fresh = changes.changed
    with os.scandir(frame.fd) as listing:
        for item in listing:
            try:
                st = item.stat(follow_symlinks=False)
            except OSError as error:
                _record_stat_error(changes, item.name, error)
                continue
            name = item.name
            names.append(name)
            if get(name) != (*st[:7], st.st_mtime_ns, st.st_ctime_ns):
                fresh.append((name, st))
    if len(names) != len(known) or fresh or changes.unreadable:
        changes.removed.update(known.keys() - set(names))
        changes.removed.difference_update(name for name, _ in changes.unreadable)
    return changes


def compare_names(frame: DirectoryScan, names: Iterable[str]) -> DirectoryChanges:
    """Compare only these names."""
    get = frame.node.stats.get
    changes = DirectoryChanges([], set(), [])
    for name in names:
        try:
            st = os.stat(name, dir_fd=frame.fd, follow_symlinks=False)
        except OSError as error:
            _record_stat_error(changes, name, error)
            if get(name) is not None and error.errno in GONE_ERRNOS:
                changes.removed.add(name)
            continue
        if get(name) != (*st[:7], st.st_mtime_ns, st.st_ctime_ns):
            changes.changed.append((name, st))
    return changes


def _record_stat_error(changes: DirectoryChanges, name: str, error: OSError) -> None:
    if error.errno in UNREADABLE_ERRNOS:
        changes.unreadable.append((name, error))
    elif error.errno not in GONE_ERRNOS:
        raise error

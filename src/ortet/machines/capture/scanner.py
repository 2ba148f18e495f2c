"""Scan of a directory: compares it with its index and returns its entry and hardlink groups.

Only files that differ from the index are read. Only directories that differ are encoded again.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ortet.errors import Invalid, NotFound
from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.machines.base import Loss
from ortet.machines.capture.entry import ReadJob
from ortet.machines.capture.frames import DirtyPaths, ScanPlan
from ortet.machines.capture.hardlinks import Inode, names_of_inodes, put_links
from ortet.machines.capture.ignore_rules import IgnoreFilter, IgnoreRules
from ortet.machines.capture.mmap_writers import mapped_inodes
from ortet.machines.capture.quick_check import find_changed_names
from ortet.machines.capture.stat_index import StatIndex
from ortet.machines.capture.walk import ScanWalk, ScanWatcher
from ortet.objects.base import ObjectStore


class ScanResult(msgspec.Struct, frozen=True):
    """The result of a scan."""

    root: TreeEntry
    links: bytes
    changed: int  # names that were added, removed or replaced
    learned: int  # how much the scan added to the index: see ScanWalk


def scan(
    objects: ObjectStore,
    trees: Trees,
    *,
    root: Path,
    index: StatIndex,
    rules: IgnoreRules,
    losses: list[Loss],
    dirty: DirtyPaths | None = None,
    mapped: Set[int] | None = None,
    watch: ScanWatcher | None = None,
    may_fork: bool = False,
) -> ScanResult:
    """Scan a directory and bring `index` and `rules` up to date.

    If the scan fails, the index is emptied, because it would be inconsistent.

    Args:
        dirty: The paths to look at; None means a full scan.
        mapped: The inodes that processes can write by mmap, if the caller has marked them in the
            index already. With `dirty` this is required: no event tells of such writes. Otherwise
            the scan looks for them among the files that it reads.
        watch: The watcher to register scanned directories with.
        may_fork: The process belongs to Ortet alone, so the scan may use fork(2).
        losses: Every known loss of the workspace is appended.

    Returns:
        The entry of the directory (with name b"") and the hardlink groups.
    """
    work = _Scan(objects, trees, index, rules=rules, watch=watch, may_fork=may_fork)
    try:
        result = work.run(root, dirty, mapped)
    except BaseException:
        index.forget(b"")
        raise
    for known in index.losses.values():
        for some in known.values():
            losses += some
    return result


class _Scan:
    """The passes of one scan: changed names, their other hardlinks, and memory-mapped files."""

    def __init__(
        self,
        objects: ObjectStore,
        trees: Trees,
        index: StatIndex,
        *,
        rules: IgnoreRules,
        watch: ScanWatcher | None,
        may_fork: bool,
    ) -> None:
        self._objects = objects
        self._index = index
        self._may_fork = may_fork
        self._watched = watch is not None
        self._ignore_filter = IgnoreFilter(index, rules)
        self._walk = ScanWalk(objects, trees, index, ignore_filter=self._ignore_filter, watch=watch)

    def run(self, root: Path, dirty: DirtyPaths | None, mapped: Set[int] | None) -> ScanResult:
        index, walk = self._index, self._walk
        for path in dirty.closed if dirty is not None else ():
            index.compare_content(path)
        try:
            with _opened(root) as fd, _gc_paused(index):
                walk.run(fd, self._first_plan(fd, dirty))
                if dirty is not None and walk.changed_hardlinks:
                    # inotify sends no event for the other names of a changed file.
                    walk.run(fd, self._plan(self._other_names(walk.changed_hardlinks)))
                if self._update_mapped(walk.files_read, mapped):
                    walk.run(fd, self._plan({}))
        finally:
            walk.close()
        if index.links is None:
            index.links = put_links(self._objects, index)
        assert index.root.entry is not None
        return ScanResult(index.root.entry, index.links, walk.changed_count, walk.learned_count)

    def _first_plan(self, fd: int, dirty: DirtyPaths | None) -> ScanPlan | None:
        if dirty is not None:
            plan = self._plan(dirty.names)
            for path in dirty.whole:
                plan.subplan(path).is_recursive = True
            return plan
        # A watcher needs every directory, so then all of them are opened.
        if not self._watched and self._index.root.entry is not None:
            return self._plan(
                find_changed_names(fd, self._index, self._ignore_filter, may_fork=self._may_fork)
            )
        return None

    def _plan(self, names: Mapping[bytes, set[bytes] | None]) -> ScanPlan:
        """Return a plan for `names` and for the names that every scan has to look at."""
        plan = ScanPlan()
        plan.add(names)
        for path, changes in self._index.pending.items():
            # A name that was forgotten may still be on disk, because its directory holds ignored
            # files.
            plan.add({path: [name for name, entry in changes.items() if entry is None]})
        for path in self._index.mapped:
            above, _, name = path.rpartition(b"/")
            plan.add({above: (name,)})
        return plan

    def _other_names(self, inodes: set[Inode]) -> dict[bytes, set[bytes] | None]:
        """Return all names that may lead to these files.

        These are the names in the index, and all names with losses, whose inodes the index does not
        know.
        """
        names: dict[bytes, set[bytes] | None] = dict(names_of_inodes(self._index, inodes))
        for path, lost in self._index.losses.items():
            names[path] = (names.get(path) or set()) | set(map(os.fsencode, lost))
        return names

    def _update_mapped(self, read: dict[int, ReadJob], mapped: Set[int] | None) -> bool:
        """Mark the files just read that a process has mapped for writing.

        Returns True if some of them must be read again.
        """
        index = self._index
        if mapped is None:
            mapped = mapped_inodes() if read else set()
        for inode, job in read.items():
            if job.mapped and inode not in mapped:
                index.mark_mapped(job.path, False)
        fresh = {inode for inode, job in read.items() if inode in mapped and not job.mapped}
        return bool(fresh and index.mark_mapped_files(fresh))


@contextmanager
def _gc_paused(index: StatIndex) -> Iterator[None]:
    """Disable the garbage collector during the first scan.

    The index only grows then, and collections would cost a twentieth of the time.
    """
    resting = index.root.entry is None and gc.isenabled()
    if resting:
        gc.disable()
    try:
        yield
    finally:
        if resting:
            gc.enable()


@contextmanager
def _opened(root: Path) -> Iterator[int]:
    """Open the root. The root itself may be reached through a symlink, nothing below it."""
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        message = f"no directory {root}: make it, or open the workspace at another place"
        raise NotFound("no_directory", message) from error
    except NotADirectoryError as error:
        message = f"{root} is not a directory: open the workspace at another place"
        raise Invalid("not_a_directory", message) from error
    try:
        yield fd
    finally:
        os.close(fd)

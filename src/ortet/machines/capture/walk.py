"""The walk of a scan: enter directories, find what differs, read it, encode on the way back.

A stack of our own and few descriptors: neither Python nor the kernel limits the depth.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import Protocol

from ortet.history.records import TreeEntry
from ortet.history.tree.tree import TreeRef, Trees
from ortet.ids import Oid
from ortet.machines.capture.entry import (
    GONE_ERRNOS,
    UNREADABLE_ERRNOS,
    clamped_mtime,
    mtime_range_loss,
    open_noatime,
    put_xattrs,
    unreadable_loss,
)
from ortet.machines.capture.frames import (
    DirectoryChanges,
    DirectoryScan,
    PendingDirectory,
    ScanPlan,
    compare_all,
    compare_names,
)
from ortet.machines.capture.hardlinks import Inode, MovedDirectories, join_path, linked_inodes_below
from ortet.machines.capture.ignore_rules import IGNORE_FILE
from ortet.machines.capture.mmap_writers import tracks_mmap_writes
from ortet.machines.capture.reader import ReadJob, ReadOutcome, read_file_entry
from ortet.machines.capture.seen import (
    MAPPED,
    NOT_APPLIED,
    DirectoryNode,
    StatRecord,
    is_dir,
    is_linked,
    is_unchanged,
    keep_unapplied_metadata,
    marks_of,
)
from ortet.machines.capture.sieve import IgnoreFilter
from ortet.machines.capture.stat_index import StatIndex
from ortet.machines.dirfd import OPEN_DIR_FLAGS, DirFdCache
from ortet.objects.base import ObjectStore

_MAX_OPEN_DIRS = 128  # descriptors of directories that still have others below them to be entered
_RULES = os.fsdecode(IGNORE_FILE)
_LARGE_FILE_BYTES = 64 * 1024


class ScanWatcher(Protocol):
    """What a watcher must be told, so that it covers all that was scanned."""

    def add(self, fd: int, path: bytes) -> None: ...
    def add_file(self, fd: int, path: bytes) -> None: ...
    def remove(self, path: bytes) -> None: ...


class ScanWalk:
    """What `linked`, `read`, `changed` and `learned` tell is of all runs together."""

    def __init__(
        self,
        objects: ObjectStore,
        trees: Trees,
        index: StatIndex,
        *,
        ignore_filter: IgnoreFilter,
        watch: ScanWatcher | None,
    ) -> None:
        self._objects = objects
        self._trees = trees
        self._index = index
        self._ignore_filter = ignore_filter
        self._watch = watch
        self._stack: list[DirectoryScan] = []
        self.changed_hardlinks: set[Inode] = set()  # changed files that have other names
        self.files_read: dict[int, ReadJob] = {}  # files that were read, by inode number
        self._moved_directories = MovedDirectories(index)
        self.changed_count = 0  # names that came, went or became something else
        self.learned_count = 0  # what the index did not know: names, a large file counts as many

    def close(self) -> None:
        for frame in self._stack:
            frame.close()

    def run(self, fd: int, plan: ScanPlan | None) -> None:
        """Look at what is planned below the open root; without a plan at everything."""
        with DirFdCache(fd) as dirs:
            self._enter_root(os.dup(fd), plan)
            while self._stack:
                frame = self._stack[-1]
                if frame.pending:
                    self._enter(frame, frame.pending.pop(), dirs)
                else:
                    self._stack.pop()
                    frame.close()
                    self._finish_directory(frame)

    def _enter_root(self, fd: int, plan: ScanPlan | None) -> None:
        index = self._index
        st = os.fstat(fd)
        index.device = st.st_dev
        if index.root_stat[1:3] != (st.st_ino, st.st_dev):
            index.forget(b"")
            plan = None
        frame = DirectoryScan(index.root, b"", fd=fd, name="", plan=plan)
        self._stack.append(frame)
        if not is_unchanged(index.root_stat, st) or index.root.entry is None:
            self._require_listing(frame)
            frame.meta = self._meta(frame, st, index.root_stat)
            index.root_stat = index.stat_with_marks(st, frame.meta)
            self.learned_count += 1
        self._compare(frame)
        if clamped_mtime(st) != st.st_mtime_ns:
            self._ignore_filter.record_loss(frame, "", mtime_range_loss(b""))

    def _enter(self, above: DirectoryScan, sub: PendingDirectory, dirs: DirFdCache) -> None:
        """Go into a directory below, unless it is gone or closed to us."""
        name = sub.name
        path = join_path(above.path, os.fsencode(name))
        try:
            if above.fd < 0:
                above.fd = os.dup(dirs.fd(above.path))
            fd = open_noatime(name, above.fd, OPEN_DIR_FLAGS)
        except OSError as error:
            self._handle_enter_error(above, name, path, error)
            return
        if not above.pending:
            above.close()
        if len(self._stack) >= _MAX_OPEN_DIRS:
            self._stack[-_MAX_OPEN_DIRS].close()
        frame = DirectoryScan(
            above.node.dirs.get(name) or DirectoryNode(), path, fd=fd, name=name, plan=sub.plan
        )
        self._stack.append(frame)
        if sub.st is not None or sub.plan is not None:
            self._recognise(frame, above.node, sub.st or os.fstat(fd))
            if frame.plan is not None and frame.plan.is_recursive:
                frame.plan = None
        self._compare(frame)

    def _handle_enter_error(
        self, above: DirectoryScan, name: str, path: bytes, error: OSError
    ) -> None:
        if error.errno in UNREADABLE_ERRNOS:
            self._ignore_filter.record_loss(above, name, unreadable_loss(path, error))
            return
        if error.errno not in GONE_ERRNOS:
            raise error
        self._record_removed(above, name)
        # something else may have taken its place just now
        if above.fd >= 0:
            fresh = [
                item
                for item in compare_names(above, [name]).changed
                if not stat.S_ISDIR(item[1].st_mode)
            ]
            self._process_changes(above, DirectoryChanges(fresh, set(), []))

    def _recognise(self, frame: DirectoryScan, above: DirectoryNode, st: os.stat_result) -> None:
        """Is it the directory we know under this name, and is its own metadata as it was?"""
        was = above.stats.get(frame.name, ())
        if was[1:3] != (st.st_ino, st.st_dev) or frame.name not in above.dirs:
            if frame.name in above.stats:
                self._forget_name(above, frame.name, frame.path)
            frame.node = (
                self._moved_directories.pop_moved((st.st_ino, st.st_dev)) or DirectoryNode()
            )
            frame.plan, frame.is_new, was = None, True, ()
            above.dirs[frame.name] = frame.node
        elif is_unchanged(was, st):
            return
        self._require_listing(frame)
        frame.meta = self._meta(frame, st, was)
        above.put(frame.name, self._index.stat_with_marks(st, frame.meta))
        self.learned_count += 1

    def _require_listing(self, frame: DirectoryScan) -> None:
        """Its times moved: names may have come or gone. Without a watcher only a listing tells."""
        if frame.plan is not None and self._watch is None:
            frame.plan.names = None

    def _meta(self, frame: DirectoryScan, st: os.stat_result, was: StatRecord) -> TreeEntry:
        entry = TreeEntry(
            os.fsencode(frame.name),
            st.st_mode,
            clamped_mtime(st),
            st.st_uid,
            st.st_gid,
            xattrs=put_xattrs(self._objects, frame.fd),
        )
        return (
            keep_unapplied_metadata(entry, was, frame.node.entry)
            if marks_of(was) & NOT_APPLIED
            else entry
        )

    def _compare(self, frame: DirectoryScan) -> None:
        """Find what differs, start reading it, and queue the directories to enter."""
        index, plan = self._index, frame.plan
        if self._watch is not None:
            self._watch.add(frame.fd, frame.path)
        if frame.path in index.pending:
            frame.changes = index.pending.pop(frame.path)
        if plan is not None and plan.names is not None and _RULES in plan.names:
            plan = frame.plan = None  # what is state may be decided anew for all below
        if plan is None or plan.names is None:
            index.losses.pop(frame.path, None)
            found = compare_all(frame)
            self._ignore_filter.apply(frame, found)
        else:
            lost = index.losses.get(frame.path, {})
            for name in plan.names:
                lost.pop(name, None)
            found = compare_names(frame, plan.names)
        if found.changed or found.removed or found.unreadable:
            self._process_changes(frame, found)
        self._queue(frame, {sub.name for sub in frame.pending})
        if frame.plan is None:
            self._watch_hardlinks(frame, frame.node.linked)
        if not frame.pending:
            frame.close()

    def _queue(self, frame: DirectoryScan, queued: set[str]) -> None:
        """Enter the directories that look unchanged from here: all of them, or those planned."""
        dirs, subs = frame.node.dirs, frame.pending
        if frame.plan is None:
            subs += [PendingDirectory(name, None, None) for name in dirs if name not in queued]
        else:
            below = frame.plan.children
            subs += [
                PendingDirectory(n, None, p)
                for n, p in below.items()
                if n in dirs and n not in queued
            ]

    def _process_changes(self, frame: DirectoryScan, changes: DirectoryChanges) -> None:
        node = frame.node
        jobs = []
        # by name: like files then lie side by side in a pack, and shrink more
        changes.changed.sort()
        for name, st in changes.changed:
            was = node.stats.get(name, ())
            raw = os.fsencode(name)
            path = join_path(frame.path, raw)
            if self._ignore_filter.is_left_out(frame, name, st.st_mode, size=st.st_size):
                if st.st_nlink > 1 and not stat.S_ISDIR(st.st_mode):
                    self.changed_hardlinks.add(
                        (st.st_ino, st.st_dev)
                    )  # it may be written by this name
                if was:
                    changes.removed.add(name)
                continue
            if clamped_mtime(st) != st.st_mtime_ns:
                self._ignore_filter.record_loss(frame, name, mtime_range_loss(path))
            if stat.S_ISDIR(st.st_mode):
                below = None if frame.plan is None else frame.plan.children.get(name) or ScanPlan()
                frame.pending.append(PendingDirectory(name, st, below))
            elif not self._trusted(was, st):
                if is_dir(was):
                    self._record_removed(frame, name)
                jobs.append(ReadJob(name, raw, st, path, bool(marks_of(was) & MAPPED)))
        for name in changes.removed:
            self._record_removed(frame, name)
        for name, error in changes.unreadable:
            path = join_path(frame.path, os.fsencode(name))
            self._ignore_filter.record_loss(frame, name, unreadable_loss(path, error))
        if jobs:
            self._watch_hardlinks(frame, [job.name for job in jobs if job.st.st_nlink > 1])
            for job in jobs:
                self._record_outcome(frame, read_file_entry(self._objects, frame.fd, job))

    def _watch_hardlinks(self, frame: DirectoryScan, names: Iterable[str]) -> None:
        """Watch files that have other names: a write by one of those tells no directory here."""
        if self._watch is not None:
            for name in names:
                self._watch.add_file(frame.fd, join_path(frame.path, os.fsencode(name)))

    def _record_removed(self, frame: DirectoryScan, name: str) -> None:
        if name in frame.node.stats:
            self.changed_count += 1
            raw = os.fsencode(name)
            frame.changes[raw] = None
            self._forget_name(frame.node, name, join_path(frame.path, raw))

    def _forget_name(self, node: DirectoryNode, name: str, path: bytes) -> None:
        """Forget a name, with all that is known below it."""
        index, was = self._index, node.stats.get(name, ())
        self.learned_count += 1
        if is_linked(was):
            self.changed_hardlinks.add(was[1:3])
            index.links = None
        if is_dir(was):
            if name in node.dirs:  # else it was found again elsewhere already
                self.changed_hardlinks |= linked_inodes_below(node.dirs[name])
                self._moved_directories.add_vanished(was[1:3], node.dirs[name])
            index.links = None
            index.forget_below(path)
            self._ignore_filter.forget_directory(path)
            if self._watch is not None:
                self._watch.remove(path)
        node.drop(name)

    def _finish_directory(self, frame: DirectoryScan) -> None:
        """Everything in it is known: encode it if it differs, and tell the directory above."""
        node, changes = frame.node, frame.changes
        if not changes and frame.meta is None:
            return
        entry, old = frame.meta or node.entry, node.entry
        assert entry is not None
        if old is None:
            tree = self._trees.build([item for item in changes.values() if item is not None])
        elif changes:
            tree = self._trees.patch(Oid(old.data), changes)
        else:
            tree = TreeRef(Oid(old.data), old.cid)
        entry = TreeEntry(
            entry.name,
            entry.mode,
            entry.mtime,
            entry.uid,
            entry.gid,
            0,
            tree.oid,
            tree.cid,
            entry.xattrs,
        )
        if self._stack and (frame.is_new or entry != old):
            self._stack[-1].changes[entry.name] = entry
        node.entry = entry

    def _record_outcome(self, frame: DirectoryScan, outcome: ReadOutcome) -> None:
        """What became of a name that was read."""
        job, index, node = outcome.job, self._index, frame.node
        if outcome.losses:
            self._ignore_filter.record_loss(frame, job.name, *outcome.losses)
        if outcome.unreadable:
            return
        if outcome.captured is None:
            self._record_removed(frame, job.name)
            return
        entry, st = outcome.captured
        was = node.stats.get(job.name, ())
        if marks_of(was) & NOT_APPLIED:
            entry = keep_unapplied_metadata(entry, was, index.entry_of(node, job.raw))
        now = index.stat_with_marks(st, entry, MAPPED if job.mapped else 0)
        if is_linked(now) or is_linked(was):
            self.changed_hardlinks.update({now[1:3], was[1:3] or now[1:3]})
            index.links = None
        node.put(job.name, now)
        self.learned_count += 1 + st.st_size // _LARGE_FILE_BYTES
        self.files_read[st.st_ino] = job
        if was[6:8] != now[6:8] or entry != index.entry_of(node, job.raw):
            frame.changes[job.raw] = entry
            self.changed_count += 1

    def _trusted(self, was: StatRecord, st: os.stat_result) -> bool:
        """A marked name whose stat is as it was: is it unchanged?"""
        return is_unchanged(was, st) and (
            not marks_of(was) & MAPPED or tracks_mmap_writes(st.st_dev)
        )

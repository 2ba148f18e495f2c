"""The walk of a scan: enter directories, compare, read changes, and encode on the way back.

The walk has its own stack and keeps few descriptors open. So neither Python nor the kernel limits
the depth of a workspace.
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
    ReadJob,
    ReadOutcome,
    clamped_mtime,
    mtime_range_loss,
    open_noatime,
    put_xattrs,
    read_file_entry,
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
from ortet.machines.capture.hardlinks import Inode, MovedDirectories, linked_inodes_below
from ortet.machines.capture.ignore_rules import IGNORE_FILE, IgnoreFilter
from ortet.machines.capture.mmap_writers import tracks_mmap_writes
from ortet.machines.capture.stat_index import (
    MAPPED,
    NOT_APPLIED,
    DirectoryNode,
    StatIndex,
    StatRecord,
    is_dir,
    is_linked,
    is_unchanged,
    keep_unapplied_metadata,
    marks_of,
    stat_record,
)
from ortet.machines.dirfd import OPEN_DIR_FLAGS, DirFdCache, join_path
from ortet.objects.base import ObjectStore

_MAX_OPEN_DIRS = 128  # open directories that still have subdirectories to enter
_RULES = os.fsdecode(IGNORE_FILE)
_LARGE_FILE_BYTES = 64 * 1024


class ScanWatcher(Protocol):
    """The calls by which a watcher learns of everything that was scanned."""

    def add(self, fd: int, path: bytes) -> None: ...
    def add_file(self, fd: int, path: bytes, *, linked: bool) -> None: ...
    def remove(self, path: bytes) -> None: ...


class ScanWalk:
    """The state of one scan. The public attributes count over all calls of `run`."""

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
        self.changed_hardlinks: set[Inode] = set()  # changed files with other names
        self.files_read: dict[int, ReadJob] = {}  # files that were read, by inode
        self._moved_directories = MovedDirectories(index)
        self.changed_count = 0  # names added, removed or replaced
        self.learned_count = 0  # additions to the index; a large file counts as several

    def close(self) -> None:
        for frame in self._stack:
            frame.close()

    def run(self, fd: int, plan: ScanPlan | None) -> None:
        """Look at the planned names below the open root, or at everything if `plan` is None."""
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
        """Enter a subdirectory, unless it is gone or not readable."""
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
        # Another file may have taken this name in the meantime.
        if above.fd >= 0:
            fresh = [
                item
                for item in compare_names(above, [name]).changed
                if not stat.S_ISDIR(item[1].st_mode)
            ]
            self._process_changes(above, DirectoryChanges(fresh, set(), []))

    def _recognise(self, frame: DirectoryScan, above: DirectoryNode, st: os.stat_result) -> None:
        """Check that a directory is the known one of this name, and update its metadata.

        A directory with another inode is new: its node is replaced by that of a moved directory or
        by an empty one, and everything in it is scanned.
        """
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
        """Plan a full listing, because the times of the directory changed.

        Without a watcher, only a listing shows added and removed names.
        """
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
        """Compare a directory with its node, read what differs, and queue its subdirectories."""
        index, plan = self._index, frame.plan
        if self._watch is not None:
            self._watch.add(frame.fd, frame.path)
        if frame.path in index.pending:
            frame.changes = index.pending.pop(frame.path)
        if plan is not None and plan.names is not None and _RULES in plan.names:
            plan = frame.plan = None  # the rules may change for everything below
        if plan is None or plan.names is None:
            index.losses.pop(frame.path, None)
            changes = compare_all(frame)
            self._ignore_filter.apply(frame, changes)
        else:
            lost = index.losses.get(frame.path, {})
            for name in plan.names:
                lost.pop(name, None)
            changes = compare_names(frame, plan.names)
        if changes.changed or changes.removed or changes.unreadable:
            self._process_changes(frame, changes)
        self._queue(frame, {sub.name for sub in frame.pending})
        if frame.plan is None:
            self._watch_files(frame, frame.node.stats.items())
        if not frame.pending:
            frame.close()

    def _queue(self, frame: DirectoryScan, queued: set[str]) -> None:
        """Queue the subdirectories with an unchanged stat: all of them, or the planned ones."""
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
        # Sorted by name, similar files are adjacent in a pack and compress better.
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
            self._watch_files(frame, [(job.name, stat_record(job.st)) for job in jobs])
            for job in jobs:
                self._record_outcome(frame, read_file_entry(self._objects, frame.fd, job))

    def _watch_files(self, frame: DirectoryScan, files: Iterable[tuple[str, StatRecord]]) -> None:
        """Watch files that have other names, or could get one.

        A write by another name sends no event to this directory.
        """
        if self._watch is not None:
            for name, was in files:
                if is_linked(was) or stat.S_ISREG(was[0]):
                    path = join_path(frame.path, os.fsencode(name))
                    self._watch.add_file(frame.fd, path, linked=is_linked(was))

    def _record_removed(self, frame: DirectoryScan, name: str) -> None:
        if name in frame.node.stats:
            self.changed_count += 1
            raw = os.fsencode(name)
            frame.changes[raw] = None
            self._forget_name(frame.node, name, join_path(frame.path, raw))

    def _forget_name(self, node: DirectoryNode, name: str, path: bytes) -> None:
        """Remove a name and everything below it from the index."""
        index, was = self._index, node.stats.get(name, ())
        self.learned_count += 1
        index.mapped.discard(path)
        if is_linked(was):
            self.changed_hardlinks.add(was[1:3])
            index.links = None
        if is_dir(was):
            if name in node.dirs:  # otherwise it was already found at another place
                self.changed_hardlinks |= linked_inodes_below(node.dirs[name])
                self._moved_directories.add_vanished(was[1:3], node.dirs[name])
            index.links = None
            index.forget_below(path)
            self._ignore_filter.forget_directory(path)
            if self._watch is not None:
                self._watch.remove(path)
        node.drop(name)

    def _finish_directory(self, frame: DirectoryScan) -> None:
        """Encode a completely scanned directory if it differs, and report it to its parent."""
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
        """Put the result of reading one name into the index and the changes."""
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
        index.foreign_inodes.discard(st.st_ino)
        self.learned_count += 1 + st.st_size // _LARGE_FILE_BYTES
        self.files_read[st.st_ino] = job
        if was[6:8] != now[6:8] or entry != index.entry_of(node, job.raw):
            frame.changes[job.raw] = entry
            self.changed_count += 1

    def _trusted(self, was: StatRecord, st: os.stat_result) -> bool:
        """Return True if a file need not be read: its stat is unchanged and shows every write."""
        return is_unchanged(was, st) and (
            not marks_of(was) & MAPPED or tracks_mmap_writes(st.st_dev)
        )

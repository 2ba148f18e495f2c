"""The walk of a scan: enter directories, find what differs, read it, encode on the way back.

A stack of our own and few descriptors: neither Python nor the kernel limits the depth.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import Protocol

from ortet.history.records import Entry
from ortet.history.tree.tree import TreeRef, Trees
from ortet.ids import Oid
from ortet.machines.capture.entry import (
    CLOSED,
    GONE,
    far_time,
    open_quietly,
    put_xattrs,
    state_time,
    unreadable,
)
from ortet.machines.capture.frames import Found, Frame, Plan, Sub, list_all, look_at
from ortet.machines.capture.hardlinks import Inode, Moves, join, linked_below
from ortet.machines.capture.ignore_rules import FILE
from ortet.machines.capture.mmap_writers import moves_mtime
from ortet.machines.capture.reader import Job, Outcome, read
from ortet.machines.capture.seen import (
    MAPPED,
    ODD,
    Node,
    Seen,
    carry,
    is_dir,
    is_linked,
    is_same,
    mark_of,
)
from ortet.machines.capture.sieve import Sieve
from ortet.machines.capture.stat_index import StatIndex
from ortet.machines.dirfd import OPEN_DIR, Dirs
from ortet.objects.base import Objects

_KEEP = 128  # descriptors of directories that still have others below them to be entered
_RULES = os.fsdecode(FILE)
_LARGE = 64 * 1024


class Watching(Protocol):
    """What a watcher must be told, so that it covers all that was scanned."""

    def add(self, fd: int, path: bytes) -> None: ...
    def add_file(self, fd: int, path: bytes) -> None: ...
    def drop(self, path: bytes) -> None: ...


class Walk:
    """What `linked`, `read`, `changed` and `learned` tell is of all runs together."""

    def __init__(
        self,
        objects: Objects,
        trees: Trees,
        index: StatIndex,
        *,
        sieve: Sieve,
        watch: Watching | None,
    ) -> None:
        self._objects = objects
        self._trees = trees
        self._index = index
        self._sieve = sieve
        self._watch = watch
        self._stack: list[Frame] = []
        self.linked: set[Inode] = set()  # changed files that have other names
        self.read: dict[int, Job] = {}  # files that were read, by inode number
        self._moves = Moves(index)
        self.changed = 0  # names that came, went or became something else
        self.learned = 0  # what the index did not know: names, a large file counts as many

    def close(self) -> None:
        for frame in self._stack:
            frame.close()

    def run(self, fd: int, plan: Plan | None) -> None:
        """Look at what is planned below the open root; without a plan at everything."""
        with Dirs(fd) as dirs:
            self._begin(os.dup(fd), plan)
            while self._stack:
                frame = self._stack[-1]
                if frame.subs:
                    self._enter(frame, frame.subs.pop(), dirs)
                else:
                    self._stack.pop()
                    frame.close()
                    self._leave(frame)

    def _begin(self, fd: int, plan: Plan | None) -> None:
        index = self._index
        st = os.fstat(fd)
        index.device = st.st_dev
        if index.root_seen[1:3] != (st.st_ino, st.st_dev):
            index.forget(b"")
            plan = None
        frame = Frame(index.root, b"", fd=fd, name="", plan=plan)
        self._stack.append(frame)
        if not is_same(index.root_seen, st) or index.root.entry is None:
            self._list_again(frame)
            frame.meta = self._meta(frame, st, index.root_seen)
            index.root_seen = index.judge(st, frame.meta)
            self.learned += 1
        self._look(frame)
        if state_time(st) != st.st_mtime_ns:
            self._sieve.lose(frame, "", far_time(b""))

    def _enter(self, above: Frame, sub: Sub, dirs: Dirs) -> None:
        """Go into a directory below, unless it is gone or closed to us."""
        name = sub.name
        path = join(above.path, os.fsencode(name))
        try:
            if above.fd < 0:
                above.fd = os.dup(dirs.fd(above.path))
            fd = open_quietly(name, above.fd, OPEN_DIR)
        except OSError as error:
            self._not_entered(above, name, path, error)
            return
        if not above.subs:
            above.close()
        if len(self._stack) >= _KEEP:
            self._stack[-_KEEP].close()
        frame = Frame(above.node.dirs.get(name) or Node(), path, fd=fd, name=name, plan=sub.plan)
        self._stack.append(frame)
        if sub.st is not None or sub.plan is not None:
            self._recognise(frame, above.node, sub.st or os.fstat(fd))
            if frame.plan is not None and frame.plan.whole:
                frame.plan = None
        self._look(frame)

    def _not_entered(self, above: Frame, name: str, path: bytes, error: OSError) -> None:
        if error.errno in CLOSED:
            self._sieve.lose(above, name, unreadable(path, error))
            return
        if error.errno not in GONE:
            raise error
        self._gone(above, name)
        # something else may have taken its place just now
        if above.fd >= 0:
            fresh = [
                item for item in look_at(above, [name]).fresh if not stat.S_ISDIR(item[1].st_mode)
            ]
            self._sort(above, Found(fresh, set(), []))

    def _recognise(self, frame: Frame, above: Node, st: os.stat_result) -> None:
        """Is it the directory we know under this name, and is its own metadata as it was?"""
        was = above.seen.get(frame.name, ())
        if was[1:3] != (st.st_ino, st.st_dev) or frame.name not in above.dirs:
            if frame.name in above.seen:
                self._drop(above, frame.name, frame.path)
            frame.node = self._moves.take((st.st_ino, st.st_dev)) or Node()
            frame.plan, frame.new, was = None, True, ()
            above.dirs[frame.name] = frame.node
        elif is_same(was, st):
            return
        self._list_again(frame)
        frame.meta = self._meta(frame, st, was)
        above.put(frame.name, self._index.judge(st, frame.meta))
        self.learned += 1

    def _list_again(self, frame: Frame) -> None:
        """Its times moved: names may have come or gone. Without a watcher only a listing tells."""
        if frame.plan is not None and self._watch is None:
            frame.plan.names = None

    def _meta(self, frame: Frame, st: os.stat_result, was: Seen) -> Entry:
        entry = Entry(
            os.fsencode(frame.name),
            st.st_mode,
            state_time(st),
            st.st_uid,
            st.st_gid,
            xattrs=put_xattrs(self._objects, frame.fd),
        )
        return carry(entry, was, frame.node.entry) if mark_of(was) & ODD else entry

    def _look(self, frame: Frame) -> None:
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
            found = list_all(frame)
            self._sieve.apply(frame, found)
        else:
            lost = index.losses.get(frame.path, {})
            for name in plan.names:
                lost.pop(name, None)
            found = look_at(frame, plan.names)
        if found.fresh or found.gone or found.closed:
            self._sort(frame, found)
        self._queue(frame, {sub.name for sub in frame.subs})
        if frame.plan is None:
            self._cover(frame, frame.node.linked)
        if not frame.subs:
            frame.close()

    def _queue(self, frame: Frame, queued: set[str]) -> None:
        """Enter the directories that look unchanged from here: all of them, or those planned."""
        dirs, subs = frame.node.dirs, frame.subs
        if frame.plan is None:
            subs += [Sub(name, None, None) for name in dirs if name not in queued]
        else:
            below = frame.plan.below
            subs += [Sub(n, None, p) for n, p in below.items() if n in dirs and n not in queued]

    def _sort(self, frame: Frame, found: Found) -> None:
        node = frame.node
        jobs = []
        found.fresh.sort()  # by name: like files then lie side by side in a pack, and shrink more
        for name, st in found.fresh:
            was = node.seen.get(name, ())
            raw = os.fsencode(name)
            path = join(frame.path, raw)
            if self._sieve.left_out(frame, name, st.st_mode, size=st.st_size):
                if st.st_nlink > 1 and not stat.S_ISDIR(st.st_mode):
                    self.linked.add((st.st_ino, st.st_dev))  # it may be written by this name
                if was:
                    found.gone.add(name)
                continue
            if state_time(st) != st.st_mtime_ns:
                self._sieve.lose(frame, name, far_time(path))
            if stat.S_ISDIR(st.st_mode):
                below = None if frame.plan is None else frame.plan.below.get(name) or Plan()
                frame.subs.append(Sub(name, st, below))
            elif not self._trusted(was, st):
                if is_dir(was):
                    self._gone(frame, name)
                jobs.append(Job(name, raw, st, path, bool(mark_of(was) & MAPPED)))
        for name in found.gone:
            self._gone(frame, name)
        for name, error in found.closed:
            path = join(frame.path, os.fsencode(name))
            self._sieve.lose(frame, name, unreadable(path, error))
        if jobs:
            self._cover(frame, [job.name for job in jobs if job.st.st_nlink > 1])
            for job in jobs:
                self._take(frame, read(self._objects, frame.fd, job))

    def _cover(self, frame: Frame, names: Iterable[str]) -> None:
        """Watch files that have other names: a write by one of those tells no directory here."""
        if self._watch is not None:
            for name in names:
                self._watch.add_file(frame.fd, join(frame.path, os.fsencode(name)))

    def _gone(self, frame: Frame, name: str) -> None:
        if name in frame.node.seen:
            self.changed += 1
            raw = os.fsencode(name)
            frame.changes[raw] = None
            self._drop(frame.node, name, join(frame.path, raw))

    def _drop(self, node: Node, name: str, path: bytes) -> None:
        """Forget a name, with all that is known below it."""
        index, was = self._index, node.seen.get(name, ())
        self.learned += 1
        if is_linked(was):
            self.linked.add(was[1:3])
            index.links = None
        if is_dir(was):
            if name in node.dirs:  # else it was found again elsewhere already
                self.linked |= linked_below(node.dirs[name])
                self._moves.leave(was[1:3], node.dirs[name])
            index.links = None
            index.forget_below(path)
            self._sieve.forget(path)
            if self._watch is not None:
                self._watch.drop(path)
        node.drop(name)

    def _leave(self, frame: Frame) -> None:
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
        entry = Entry(
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
        if self._stack and (frame.new or entry != old):
            self._stack[-1].changes[entry.name] = entry
        node.entry = entry

    def _take(self, frame: Frame, outcome: Outcome) -> None:
        """What became of a name that was read."""
        job, index, node = outcome.job, self._index, frame.node
        if outcome.losses:
            self._sieve.lose(frame, job.name, *outcome.losses)
        if outcome.unreadable:
            return
        if outcome.found is None:
            self._gone(frame, job.name)
            return
        entry, st = outcome.found
        was = node.seen.get(job.name, ())
        if mark_of(was) & ODD:
            entry = carry(entry, was, index.entry_of(node, job.raw))
        now = index.judge(st, entry, MAPPED if job.mapped else 0)
        if is_linked(now) or is_linked(was):
            self.linked.update({now[1:3], was[1:3] or now[1:3]})
            index.links = None
        node.put(job.name, now)
        self.learned += 1 + st.st_size // _LARGE
        self.read[st.st_ino] = job
        if was[6:8] != now[6:8] or entry != index.entry_of(node, job.raw):
            frame.changes[job.raw] = entry
            self.changed += 1

    def _trusted(self, was: Seen, st: os.stat_result) -> bool:
        """A marked name whose stat is as it was: is it unchanged?"""
        return is_same(was, st) and (not mark_of(was) & MAPPED or moves_mtime(st.st_dev))

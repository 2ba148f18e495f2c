"""An overlay's upper directory -> the tree of the layers below, patched. Looks at nothing else.

What the kernel writes there: changed names as they are now; a character device 0:0 for a name that
is gone (whiteout); `opaque` on a directory that hides the one below; `redirect` on a directory
that was renamed and still shows what lies below its old name; `metacopy` on a file whose content is
still the one below.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush

from ortet.history.records import Entry
from ortet.machines.base import Loss
from ortet.machines.capture.entry import CLOSED, GONE, far_time, put_xattrs, unreadable
from ortet.machines.capture.hardlinks import join
from ortet.machines.capture.ignore_rules import FILE, Rules
from ortet.machines.overlay.upper.tree import Fresh, UpperTree
from ortet.machines.overlay.upper.upperlinks import merge_groups
from ortet.machines.overlay.upper.uppermarks import read_marks, read_rules
from ortet.machines.overlay.upper.uppernode import Node, is_gone, stamp
from ortet.objects.blobs import get_bytes

Mapped = Mapping[bytes, set[str]]
"""Directory -> names of files in it that some process writes through memory."""

_RULES = os.fsdecode(FILE)


class Upper(UpperTree):
    """Looks at an upper directory: at what was stirred, or at everything."""

    def close(self) -> None:
        self._release(self.root)
        self._holder.close()

    @property
    def losses(self) -> list[Loss]:
        """What the last scan could not take in."""
        return self._taker.losses

    @property
    def rules(self) -> Rules:
        return self._taker.rules

    @property
    def ignoring(self) -> bool:
        """Has it seen files that are no state?"""
        return self._taker.ignoring

    @property
    def restated(self) -> bool:
        """An ignore file changed what is state below: only a full scan can tell."""
        return bool(self._restated)

    def stir(self, node: Node | None) -> None:
        """Something happened to this directory, or, None, to any."""
        self._stirred.update(self.root.walk() if node is None else (node,))

    def hear(self, node: Node, name: str) -> None:
        """This file was written to."""
        if name in node.held:
            self._heard.add(node.held[name])

    def scan(self, mapped: Mapped | None = None, *, quiet: bool = False) -> Entry:
        """The merged directory as it is now.

        `quiet`: no process of the machine lives, nor did at the last scan, so whoever wrote has
        closed what it wrote, and was heard. Otherwise all files are asked.
        """
        self._taker.losses = []
        self._watch.drain()
        self._stirred |= self._unsure
        if mapped:
            self._stirred |= {node for node in self.root.walk() if node.path in mapped}
        quiet = quiet and not self.linked and not self._deaf
        self._look(self._heard if quiet else None, mapped)
        if quiet and self.linked:  # a file has got another name: the one it had told nothing
            self._look(None, mapped)
        self._taker.sum_up()
        assert self.root.entry is not None
        return self.root.entry

    def _look(self, some: set[int] | None, mapped: Mapped | None) -> None:
        """At what was stirred, and at all kept files or at some."""
        for node, name, st in self._holder.changed(some):
            if node not in self._stirred:
                self._touched.setdefault(node, {})[name] = st
        if self._stirred or self._touched:
            self._fold_all(self._visit_all(mapped))
        # only now: after a failure they are looked at again
        self._stirred, self._touched, self._heard = set(), {}, set()

    def groups(self, below: Sequence[Sequence[bytes]]) -> list[list[bytes]]:
        """Hardlink groups of the merged directory, given those of the layers below."""
        return merge_groups(self.root, self.linked, below)

    # looking

    def _visit_all(self, mapped: Mapped | None) -> list[Node]:
        """What was stirred, parents before what they hold, and directories that turn up."""
        visited = [node for node, files in self._touched.items() if self._retake(node, files)]
        queue = [(node.depth, id(node), node) for node in self._stirred]
        heapify(queue)
        while queue:
            _, _, node = heappop(queue)
            if node.dropped:
                continue
            visited.append(node)
            known = set(node.dirs.values())
            try:
                self._visit(node, mapped)
            except OSError as error:
                self._closed(node, error)
            for child in node.dirs.values():
                if child not in known:
                    self._stirred.add(child)
                    heappush(queue, (child.depth, id(child), child))
        return visited

    def _listen(self, node: Node) -> None:
        """Hear of writes in it, if we may."""
        if self._view:
            self._watch.add_view(join(self._view, node.path), self, node)
        if node.view < 0:
            self._deaf.add(node)
        else:
            self._deaf.discard(node)

    def _retake(self, node: Node, files: Fresh) -> bool:
        """Only files in it changed, in place; False: it has to be visited."""
        lost = len(self._taker.losses)
        try:
            if _RULES not in files and node not in self._stirred:
                fd = self._holder.open(node)
                for name, st in files.items():
                    self._take(node, name, st, fd=fd)
                if node.listed and len(self._taker.losses) == lost:
                    return True
        except OSError:
            pass  # it has just gone, perhaps; the visit will tell
        self._stirred.add(node)
        return False

    def _visit(self, node: Node, mapped: Mapped | None) -> None:
        self._unsure.add(node)  # until we are through
        lost = len(self._taker.losses)
        fd = self._holder.open(node)
        if node.wd < 0:  # before we look, so that nothing comes between
            self._watch.add(fd, self, node)
        if node.view < 0:
            self._listen(node)
        if node.arrive(os.fstat(fd)) or not node.listed:
            fresh = self._examine(node, fd)
        else:
            fresh = self._glance(node, fd)
        if _RULES in fresh and self._obey(node, fd):
            fresh = self._examine(node, fd)
        for name, st in fresh.items():
            self._take(node, name, st, fd=fd)
        for name in mapped.get(node.path, ()) if mapped else ():
            if name in node.known:
                with suppress(FileNotFoundError):
                    st = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    self._take(node, name, st, fd=fd, mapped=True)
        if node.time != node.mtime:
            self._taker.losses.append(far_time(node.path))
        watched = node.wd >= 0 and len(node.held) == len(node.known)
        if watched and node.listed and len(self._taker.losses) == lost:
            self._unsure.discard(node)
        self.count += node.recount()

    def _glance(self, node: Node, fd: int) -> Fresh:
        """Its names are as they were: look at what can change in place."""
        held, fresh, missed = node.held, {}, []
        for name, was in node.known.items():
            own = held.get(name)
            try:
                if own is not None:
                    st = os.fstat(own)
                else:
                    st = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError as error:
                missed.append((name, error))
                continue
            if was != (st.st_ctime_ns, st.st_mtime_ns, st.st_size, st.st_ino):
                fresh[name] = st
        for name, why in missed:
            self._unseen(node, name, why)
        return fresh

    def _examine(self, node: Node, fd: int) -> Fresh:
        """List it and look at every name, for some came or went."""
        if node.fresh:
            self._learn(node, fd)
        names = os.listdir(fd)
        if _RULES in names or node.text is not None or node.entry is None:
            self._obey(node, fd)
        node.listed = node.ctime < self.horizon
        for name in node.names().difference(names):
            self._fall_back(node, name)
        fresh: Fresh = {}
        for name in names:
            try:
                st = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError as error:
                self._unseen(node, name, error)
                continue
            if stat.S_ISDIR(st.st_mode):
                self._enter(node, name, st)
            elif node.known.get(name) != stamp(st) and not (name in node.gone and is_gone(st)):
                self._holder.let_go(node, name)  # another file may have its name now
                fresh[name] = st
        return fresh

    def _enter(self, above: Node, name: str, st: os.stat_result) -> None:
        """A directory: the one we know, or another of its name."""
        child = above.dirs.get(name)
        if name in above.skipped or (child is not None and child.ino == st.st_ino):
            return
        raw = os.fsencode(name)
        path = join(above.path, raw)
        self._drop(above, name)
        if self._taker.skip(path, True):
            self._taker.ignoring = True
            above.skipped.add(name)
            above.changes[raw] = None
        else:
            above.dirs[name] = Node(above, name, path)
            above.dirs[name].ino = st.st_ino

    def _unseen(self, node: Node, name: str, error: OSError) -> None:
        """A listed name that cannot be looked at: it has just gone, or we may not."""
        node.listed = False
        if error.errno in CLOSED:
            self._taker.losses.append(unreadable(join(node.path, os.fsencode(name)), error))
        elif error.errno in GONE:
            self._fall_back(node, name)
        else:
            raise error

    def _closed(self, node: Node, error: OSError) -> None:
        """It may not be looked into, or has just gone: what was known of it stands."""
        if error.errno not in CLOSED and error.errno not in GONE:
            raise error
        node.listed = False
        self._taker.losses.append(unreadable(node.path, error))
        if node.marks is None and node.parent is not None:
            self._place(node, (False, b""))

    def _fall_back(self, node: Node, name: str) -> None:
        """The name is gone from the upper directory: what lies below shows again, if anything."""
        self._drop(node, name)
        raw = os.fsencode(name)
        node.changes[raw] = self._taker.lower(node, raw)

    def _learn(self, node: Node, fd: int) -> None:
        """Read a directory's own attributes; the kernel's say what lies below it."""
        opaque, redirect, some = read_marks(fd, self._taker.prefix)
        if node.parent is not None and node.marks != (opaque, redirect):
            self._place(node, (opaque, redirect))
        node.xattrs = put_xattrs(self._objects, fd) if some else b""

    def _place(self, node: Node, marks: tuple[bool, bytes]) -> None:
        """Find the directory that shows through this one."""
        above, (opaque, redirect) = node.parent, marks
        assert above is not None
        self._forget(node)
        node.marks, node.below, node.origin = marks, None, None
        if opaque:
            return
        if redirect.startswith(b"/"):
            origin, found = redirect[1:], self._taker.deep(redirect[1:])
        elif above.origin is not None:
            name = redirect or os.fsencode(node.name)
            origin, found = join(above.origin, name), self._taker.lower(above, name)
        else:
            return
        if found is not None and found.is_dir:
            node.below, node.origin = found, origin

    def _obey(self, node: Node, fd: int) -> bool:
        """Take in its ignore file; True when that changed, and every name is to be asked again."""
        below = self._taker.lower(node, FILE)
        said = None
        if below is not None and below.is_file:
            said = get_bytes(self._objects, below.data, below.size)
        text = read_rules(fd, said)
        if text != said and node.below is not None:
            self._restated.add(node.path)
        else:
            self._restated.discard(node.path)
        if text == node.text:
            return False
        self._forget(node)
        node.text = text
        self._taker.rules.set(node.path, text)
        return True

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
from pathlib import Path

from ortet.graph.records import Entry
from ortet.graph.tree import Trees
from ortet.ids import Oid
from ortet.machine.abc import Loss
from ortet.machine.capture import CLOSED, GONE, Unreadable, far_time, put_xattrs, unreadable
from ortet.machine.links import join
from ortet.machine.rules import FILE
from ortet.machine.statindex import CALM
from ortet.machine.upperhold import Holder, Spare
from ortet.machine.upperlinks import merge_groups
from ortet.machine.uppermarks import read_marks, read_rules
from ortet.machine.uppernode import Node, is_gone, stamp, summary
from ortet.machine.uppertake import Taker
from ortet.machine.upperwatch import UpperWatch
from ortet.store.abc import Objects
from ortet.store.blobs import get_bytes

Mapped = Mapping[bytes, set[str]]
"""Directory -> names of files in it that some process writes through memory."""

Fresh = dict[str, os.stat_result]
"""Names that are not as they were, no directories among them."""

_RULES = os.fsdecode(FILE)
_UNSURE = (0, 0, 0, 0)  # no file's stamp: it is looked at again


class Upper:
    """One upper directory and what was seen in it. One thread at a time.

    `below` is the merged layers under it. `root`: mounted by the host's root, whose marks are other
    xattrs than an ordinary user's. What has a ctime at or after `horizon` is looked at again.
    `view` is the path of the merged directory, if it can be watched.
    """

    def __init__(
        self,
        objects: Objects,
        trees: Trees,
        directory: Path,
        *,
        below: Entry,
        root: bool,
        spare: Spare | None = None,
        watch: UpperWatch | None = None,
        view: bytes = b"",
        taker: Taker | None = None,
    ) -> None:
        self.horizon = CALM
        self.count = 0  # names in it
        self.linked: dict[bytes, int] = {}  # files with several names -> inode
        self.root = Node(None, "", b"")
        self.root.below, self.root.origin = below, b""
        self._objects = objects
        self._trees = trees
        self._taker = taker or Taker(objects, trees, below, root=root)
        self._restated: set[bytes] = set()
        self._stirred = {self.root}  # something happened to these directories
        self._touched: dict[Node, Fresh] = {}  # and only to these files in others
        self._heard: set[int] = set()  # descriptors of files that were written to
        self._deaf: set[Node] = set()  # directories of which we do not hear
        self._view = view
        self._unsure: set[Node] = set()  # and these have to be asked every time
        self._watch = watch or UpperWatch()
        self._holder = Holder(directory, spare or Spare())

    def close(self) -> None:
        self._release(self.root)
        self._holder.close()

    @property
    def losses(self) -> list[Loss]:
        """What the last scan could not take in."""
        return self._taker.losses

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

    # taking

    def _take(
        self, node: Node, name: str, st: os.stat_result, *, fd: int, mapped: bool = False
    ) -> None:
        """Something that is no directory: what is it now?"""
        raw = os.fsencode(name)
        path = join(node.path, raw)
        if name not in node.known:
            self._drop(node, name)
        self._taker.too_large.pop(path, None)
        lost, inode, before = len(self._taker.losses), st.st_ino, node.known.get(name, _UNSURE)
        try:
            entry, st = self._taker.entry(node, raw, st, fd=fd, path=path, mapped=mapped)
        except Unreadable as error:
            self._taker.losses.append(error.loss)
            node.known[name] = _UNSURE  # asked, and reported, again next time
            return
        if st.st_ino != inode:
            self._holder.let_go(node, name)
        if is_gone(st):
            node.gone.add(name)
            node.known.pop(name, None)
        else:
            certain = st.st_ctime_ns < self.horizon and len(self._taker.losses) == lost
            was = node.known[name] = stamp(st) if certain else _UNSURE
            self._holder.hold(node, name, fd, was)
        if entry is not None and st.st_nlink > 1:
            self.linked[path] = st.st_ino
        else:
            self.linked.pop(path, None)
        moved = before is not _UNSURE and before[1] != st.st_mtime_ns  # so it differs for sure
        if moved or node.entry is None or self._trees.lookup(Oid(node.entry.data), raw) != entry:
            node.changes[raw] = entry
        else:
            node.changes.pop(raw, None)

    # adding up

    def _fold_all(self, visited: list[Node]) -> None:
        """The deepest first; a directory whose Entry changed is a change of the one above."""
        levels: dict[int, set[Node]] = {}
        for node in visited:
            levels.setdefault(node.depth, set()).add(node)
        for depth in range(max(levels), -1, -1):
            for node in levels.get(depth, ()):
                if not node.dropped and (node.changes or node.fresh or node.entry is None):
                    self._fold(node)
                    if node.parent is not None and node.parent.changes:
                        levels.setdefault(depth - 1, set()).add(node.parent)

    def _fold(self, node: Node) -> None:
        """Its Entry; the directory above is told when it changed."""
        entry = self._summary(node)
        if node.parent is not None and entry != node.entry:
            node.parent.changes[entry.name] = entry
        node.entry, node.changes, node.fresh = entry, {}, False

    def _summary(self, node: Node) -> Entry:
        return summary(self._trees, node, owners=self._taker.root)

    # forgetting

    def _drop(self, node: Node, name: str) -> None:
        """Forget a name with all below it."""
        self._holder.let_go(node, name)
        path = join(node.path, os.fsencode(name))
        child = node.dirs.get(name)
        if child is not None:
            self._release(child)
            self._forget_below(path)
            self._holder.forget(path)
            self._taker.rules.forget(path)
        self.linked.pop(path, None)
        self._taker.too_large.pop(path, None)
        node.drop(name)

    def _forget(self, node: Node) -> None:
        """Know nothing of what is in a directory."""
        self._holder.let_all_go(node)
        for child in node.dirs.values():
            self._release(child)
        self._forget_below(node.path)
        node.clear()

    def _release(self, top: Node) -> None:
        """A directory and all below it are no longer part of the tree."""
        for node in top.walk():
            self._holder.let_all_go(node)
            self._watch.remove(node)
            self._unsure.discard(node)
            self._deaf.discard(node)
            self.count -= node.counted
            node.dropped = True

    def _forget_below(self, path: bytes) -> None:
        """What was remembered by path about things in a directory."""
        below = path + b"/" if path else b""
        for table in (self.linked, self._taker.too_large):
            for at in [at for at in table if at.startswith(below)]:
                del table[at]
        self._restated = {at for at in self._restated if not at.startswith(below) or at == path}

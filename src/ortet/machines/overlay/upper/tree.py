"""What was seen of an upper directory: taken in name by name, added up, and forgotten."""

from __future__ import annotations

import os
from pathlib import Path

from ortet.history.records import Entry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.capture.entry import Unreadable
from ortet.machines.capture.hardlinks import join
from ortet.machines.capture.stat_index import CALM
from ortet.machines.overlay.upper.entry import Taker
from ortet.machines.overlay.upper.fd_cache import Holder, Spare
from ortet.machines.overlay.upper.inotify import UpperWatch
from ortet.machines.overlay.upper.uppernode import Node, is_gone, stamp, summary
from ortet.objects.base import Objects

Fresh = dict[str, os.stat_result]
"""Names that are not as they were, no directories among them."""

_UNSURE = (0, 0, 0, 0)  # no file's stamp: it is looked at again


class UpperTree:
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

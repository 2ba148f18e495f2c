"""An overlay's upper directory -> the tree of the layers below, patched. Looks at nothing else.

What the kernel writes there: changed names as they are now; a character device 0:0 for a name that
is gone (whiteout); `opaque` on a directory that hides the one below; `redirect` on a directory
that was renamed and still shows what lies below its old name; `metacopy` on a file whose content is
still the one below.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from ortet.errors import Corrupt
from ortet.graph.records import Entry
from ortet.graph.tree import TreeRef, Trees
from ortet.ids import Oid
from ortet.machine.abc import Loss
from ortet.machine.capture import (
    CLOSED,
    GONE,
    Unreadable,
    look,
    open_quietly,
    put_xattrs,
    unreadable,
)
from ortet.machine.dirs import OPEN_DIR, Dirs
from ortet.machine.links import join
from ortet.machine.rules import FILE, Rules
from ortet.machine.statindex import CALM
from ortet.machine.uppernode import Node, stamp
from ortet.store.abc import Objects
from ortet.store.blobs import get_bytes

Mapped = Mapping[bytes, set[str]]
"""Directory -> names of files in it that some process writes through memory."""

_KEEP = 256  # descriptors of directories held from one scan to the next
_RULES = os.fsdecode(FILE)
_RULES_MOST = 1 << 20


class Upper:
    """One upper directory and what was seen in it. One thread at a time.

    `below` is the merged layers under it. `root`: mounted by the host's root, whose marks are other
    xattrs than an ordinary user's. What has a ctime at or after `horizon` is looked at again.
    """

    def __init__(
        self, objects: Objects, trees: Trees, directory: Path, *, below: Entry, root: bool
    ) -> None:
        self.horizon = CALM
        self.losses: list[Loss] = []
        self.count = 0  # names in it
        self.ignoring = False  # some of them are no state
        self.restated = False  # an ignore file changed what is state below: only a full scan tells
        self.linked: dict[bytes, int] = {}  # files with several names -> inode
        self.root = Node(None, "", b"")
        self.root.below, self.root.origin = below, b""
        self._below = below
        self._objects = objects
        self._trees = trees
        self._root = root
        self._prefix = "trusted.overlay." if root else "user.overlay."
        self._rules = Rules()
        self._too_large: dict[bytes, Loss] = {}
        self._top = os.open(directory, OPEN_DIR)
        self._dirs = Dirs(self._top, keep=_KEEP)

    def close(self) -> None:
        self._dirs.close()
        os.close(self._top)

    def scan(self, mapped: Mapped | None = None) -> Entry:
        """The merged directory as it is now."""
        self.losses = []
        self.restated = False
        self.count = 0
        root = self.root
        root.arrive(os.fstat(self._top))
        order = [root]
        for node in order:  # which grows meanwhile: parents come before what they hold
            self._visit(node, order, mapped)
        for node in reversed(order):
            self._fold(node)
        self.losses += self._too_large.values()
        assert root.entry is not None
        return root.entry

    # looking

    def _visit(self, node: Node, order: list[Node], mapped: Mapped | None) -> None:
        try:
            fd = self._dirs.fd(node.path)
            if node.fresh:
                self._learn(node, fd)
            if not node.listed:
                self._list(node, fd)
        except OSError as error:
            self._closed(node, error)
            return
        if node.ruled:
            self._obey(node, fd)
        self.count += len(node.names)
        known, fresh = node.known, []
        also: Collection[str] = mapped.get(node.path, ()) if mapped else ()
        for name in node.names:
            try:
                st = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError as error:
                self._unseen(node, name, error)
                continue
            if st.st_mode & 0o170000 == stat.S_IFDIR:
                self._enter(node, name, st, order)
            elif (
                known.get(name) != (st.st_ctime_ns, st.st_mtime_ns, st.st_size, st.st_ino)
                or name in also
            ):
                fresh.append((name, st))
        for name, st in fresh:
            self._take(node, name, st, fd=fd, mapped=name in also)

    def _unseen(self, node: Node, name: str, error: OSError) -> None:
        """A listed name that cannot be looked at: it has just gone, or we may not."""
        node.listed = False
        if error.errno in CLOSED:
            self.losses.append(unreadable(join(node.path, os.fsencode(name)), error))
        elif error.errno in GONE:
            self._fall_back(node, name)
        else:
            raise error

    def _closed(self, node: Node, error: OSError) -> None:
        """It may not be looked into: what was known of it stands."""
        self.losses.append(unreadable(node.path, error))
        if node.marks is None and node.parent is not None:
            self._place(node, (False, b""))

    def _list(self, node: Node, fd: int) -> None:
        names = os.listdir(fd)
        seen = node.known.keys() | node.dirs.keys() | node.skipped
        for name in seen.difference(names):
            self._fall_back(node, name)
        node.ruled = node.ruled or _RULES in names
        node.names = names
        node.listed = node.ctime < self.horizon

    def _fall_back(self, node: Node, name: str) -> None:
        """The name is gone from the upper directory: what lies below shows again, if anything."""
        self._drop(node, name)
        raw = os.fsencode(name)
        node.changes[raw] = self._lower(node, raw)

    def _lower(self, node: Node, raw: bytes) -> Entry | None:
        return None if node.below is None else self._trees.lookup(Oid(node.below.data), raw)

    def _enter(self, above: Node, name: str, st: os.stat_result, order: list[Node]) -> None:
        """A directory: the one we know, or a new one whose place below is still to be found."""
        child = above.dirs.get(name)
        if child is not None and child.ino == st.st_ino and not child.arrive(st):
            order.append(child)
            return
        if name in above.skipped:
            return
        raw = os.fsencode(name)
        path = join(above.path, raw)
        if child is None or child.ino != st.st_ino:
            self._drop(above, name)
            if self._skip(path, True):
                self.ignoring = True
                above.skipped.add(name)
                above.changes[raw] = None
                return
            child = above.dirs[name] = Node(above, name, path)
            child.arrive(st)
        order.append(child)

    def _learn(self, node: Node, fd: int) -> None:
        """Read a directory's own attributes; the kernel's say what lies below it."""
        names = os.listxattr(fd)
        opaque, redirect = self._prefix + "opaque", self._prefix + "redirect"
        marks = (
            opaque in names and os.getxattr(fd, opaque) == b"y",
            os.getxattr(fd, redirect) if redirect in names else b"",
        )
        if node.parent is not None and node.marks != marks:
            self._place(node, marks)
        node.xattrs = put_xattrs(self._objects, fd) if names else b""

    def _place(self, node: Node, marks: tuple[bool, bytes]) -> None:
        """Find the directory that shows through this one."""
        above, (opaque, redirect) = node.parent, marks
        assert above is not None
        node.forget()
        self._forget_below(node.path)
        node.marks, node.below, node.origin = marks, None, None
        if opaque:
            return
        if redirect.startswith(b"/"):
            origin, found = redirect[1:], self._trees.resolve(self._below, redirect[1:])
        elif above.origin is not None:
            name = redirect or os.fsencode(node.name)
            origin, found = join(above.origin, name), self._lower(above, name)
        else:
            return
        if found is not None and found.is_dir:
            node.below, node.origin = found, origin

    def _obey(self, node: Node, fd: int) -> None:
        """Take in this directory's ignore file; where it changed, every name is asked again."""
        below = self._lower(node, FILE)
        said = None
        if below is not None and below.is_file:
            said = get_bytes(self._objects, below.data, below.size)
        text = _read_rules(fd) if _RULES in node.names else said
        node.ruled = _RULES in node.names
        if text != said and node.below is not None:
            self.restated = True
        if text != node.text:
            node.text = text
            self._rules.set(node.path, text)
            names = node.names
            node.forget()
            self._forget_below(node.path)
            node.names, node.ruled = names, _RULES in names

    # taking

    def _take(
        self, node: Node, name: str, st: os.stat_result, *, fd: int, mapped: bool = False
    ) -> None:
        """Something that is no directory: what is it now?"""
        raw = os.fsencode(name)
        path = join(node.path, raw)
        if name in node.dirs or name in node.skipped:
            self._drop(node, name)
        self._too_large.pop(path, None)
        try:
            entry, st = self._entry(node, raw, st, fd=fd, path=path, mapped=mapped)
        except Unreadable as error:
            self.losses.append(error.loss)
            node.known.pop(name, None)  # asked, and reported, again next time
            return
        if st.st_ctime_ns < self.horizon:
            node.known[name] = stamp(st)
        else:
            node.known[name] = (0, 0, 0, 0)
        if entry is not None and st.st_nlink > 1:
            self.linked[path] = st.st_ino
        else:
            self.linked.pop(path, None)
        if node.entry is None or self._trees.lookup(Oid(node.entry.data), raw) != entry:
            node.changes[raw] = entry
        else:
            node.changes.pop(raw, None)

    def _entry(
        self, node: Node, raw: bytes, st: os.stat_result, *, fd: int, path: bytes, mapped: bool
    ) -> tuple[Entry | None, os.stat_result]:
        """The Entry of a name and the stat it belongs to; None where it is no state."""
        if stat.S_ISCHR(st.st_mode) and st.st_rdev == 0:
            return self._whiteout(path), st
        if self._skip(path, False) or self._exceeds(path, st):
            self.ignoring = True
            return None, st
        if self._root and stat.S_ISREG(st.st_mode):
            found = self._metacopy(node, raw, st, fd=fd)
            if found is not None:
                return found, st
        seen = look(self._objects, fd, raw, st, path=path, losses=self.losses, mapped=mapped)
        if seen is None:  # gone between two looks
            node.listed = False
            return self._lower(node, raw), st
        return self._owned(node, seen[0]), seen[1]

    def _metacopy(self, node: Node, raw: bytes, st: os.stat_result, *, fd: int) -> Entry | None:
        """A file of which only the metadata was copied up: its content is that of the one below."""
        place = b"/proc/self/fd/%d/%s" % (fd, raw)
        try:
            os.getxattr(place, self._prefix + "metacopy", follow_symlinks=False)
        except OSError as error:
            if error.errno == errno.ENODATA:
                return None
            raise
        redirect = _attribute(place, self._prefix + "redirect")
        if redirect.startswith(b"/"):
            below = self._trees.resolve(self._below, redirect[1:])
        else:
            below = self._lower(node, redirect or raw)
        if below is None or not below.is_file:
            where = os.fsdecode(join(node.path, raw))
            raise Corrupt(
                "bad_layer",
                f"{where} rests on a file that its layers do not hold: restore a commit",
            )
        return replace(
            below,
            name=raw,
            mode=st.st_mode,
            mtime=st.st_mtime_ns,
            uid=st.st_uid,
            gid=st.st_gid,
            xattrs=put_xattrs(self._objects, place),
        )

    def _owned(self, node: Node, entry: Entry) -> Entry:
        """Without root no owner can be given or changed: the one below stands."""
        if self._root:
            return entry
        below = self._lower(node, entry.name)
        return entry if below is None else replace(entry, uid=below.uid, gid=below.gid)

    def _exceeds(self, path: bytes, st: os.stat_result) -> bool:
        if self._rules.empty or not stat.S_ISREG(st.st_mode):
            return False
        limit = self._rules.limit(path)
        if limit is None or st.st_size <= limit:
            return False
        why = f"its {st.st_size} bytes are more than the {limit} that {_RULES} allows"
        self._too_large[path] = Loss(os.fsdecode(path), "size", why)
        return True

    def _skip(self, path: bytes, is_dir: bool) -> bool:
        """Is it no state?"""
        return self._rules.ignored(path, is_dir)

    def _whiteout(self, path: bytes) -> Entry | None:  # noqa: ARG002 - for differences
        """What a name that was taken away leaves in the tree."""
        return None

    # several names for one file

    def groups(self, below: Sequence[Sequence[bytes]]) -> list[list[bytes]]:
        """Hardlink groups of the merged directory, given those of the layers below."""
        found: dict[int, list[bytes]] = {}
        for path, inode in self.linked.items():
            found.setdefault(inode, []).append(path)
        groups = [sorted(paths) for paths in found.values()]
        if below:
            moved = [n for n in self.root.walk() if n.marks is not None and n.marks[1]]
            for paths in below:
                shown = (self._shown(path, moved) for path in paths)
                groups.append(sorted(path for path in shown if path is not None))
        return sorted(group for group in groups if len(group) > 1)

    def _shown(self, path: bytes, moved: Sequence[Node]) -> bytes | None:
        """Where a file of the layers below is seen; None when something covers it."""
        for start in (self.root, *moved):
            if start.origin is None or not path.startswith(start.origin):
                continue
            rest = path[len(start.origin) :].lstrip(b"/") if start.origin else path
            found = _descend(start, rest)
            if found is not None:
                return found
        return None

    # adding up

    def _fold(self, node: Node) -> None:
        """Its Entry, if anything changed, and tell the directory above."""
        if not node.changes and not node.fresh and node.entry is not None:
            return
        entry = self._summary(node)
        if node.parent is not None and entry != node.entry:
            node.parent.changes[os.fsencode(node.name)] = entry
        node.entry, node.changes, node.fresh = entry, {}, False

    def _summary(self, node: Node) -> Entry:
        base = node.entry or node.below
        tree = self._trees.empty() if base is None else TreeRef(Oid(base.data), base.cid)
        if node.changes:
            tree = self._trees.patch(tree.oid, node.changes)
        raw, below = os.fsencode(node.name), node.below
        if self._root or below is None:
            uid, gid = node.uid, node.gid
        else:
            uid, gid = below.uid, below.gid
        return Entry(raw, node.mode, node.mtime, uid, gid, 0, tree.oid, tree.cid, node.xattrs)

    # forgetting

    def _drop(self, node: Node, name: str) -> None:
        """Forget a name with all below it."""
        node.known.pop(name, None)
        node.skipped.discard(name)
        path = join(node.path, os.fsencode(name))
        self.linked.pop(path, None)
        self._too_large.pop(path, None)
        if node.dirs.pop(name, None) is not None:
            self._forget_below(path)
            self._dirs.forget(path)
            self._rules.forget(path)

    def _forget_below(self, path: bytes) -> None:
        """What was remembered by path about things in a directory."""
        below = path + b"/" if path else b""
        for table in (self.linked, self._too_large):
            for at in [at for at in table if at.startswith(below)]:
                del table[at]


def _descend(node: Node, rest: bytes) -> bytes | None:
    """The path of something that lies below a directory and is covered by nothing."""
    while True:
        raw, _, after = rest.partition(b"/")
        name = os.fsdecode(raw)
        if name in node.known or name in node.skipped:
            return None
        child = node.dirs.get(name)
        if child is None:
            return join(node.path, rest)
        assert node.origin is not None
        if child.origin != join(node.origin, raw):
            return None
        node, rest = child, after


def _read_rules(fd: int) -> bytes | None:
    """The text of an ignore file that is a plain file."""
    try:
        own = open_quietly(FILE, fd)
    except OSError:
        return None
    try:
        return os.read(own, _RULES_MOST) if stat.S_ISREG(os.fstat(own).st_mode) else None
    finally:
        os.close(own)


def _attribute(place: bytes, name: str) -> bytes:
    try:
        return os.getxattr(place, name, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.ENODATA:
            return b""
        raise

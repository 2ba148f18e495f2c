"""Captures one name of an upper directory as its entry in the merged directory.

`UpperDirectory` is one directory as the last scan found it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import Protocol

from msgspec.structs import replace

from ortet.errors import Corrupt
from ortet.history.records import TreeEntry
from ortet.history.tree.tree import TreeRef, Trees
from ortet.ids import Oid
from ortet.machines.base import Loss
from ortet.machines.capture.entry import capture_with_stat, clamped_mtime, open_noatime, put_xattrs
from ortet.machines.capture.ignore_rules import IGNORE_FILE, IgnoreRules
from ortet.machines.dirfd import join_path
from ortet.objects.base import ObjectStore

Stamp = tuple[int, int, int, int]
"""ctime, mtime, size, inode. A file with an unchanged stamp is not read again."""

Marks = tuple[bool, bytes]
"""The marks of overlayfs on a directory: opaque, and the redirect."""

_MAX_IGNORE_FILE_BYTES = 1 << 20


def stamp(st: os.stat_result) -> Stamp:
    return st.st_ctime_ns, st.st_mtime_ns, st.st_size, st.st_ino


class UpperDirectory:
    """A directory: its stat, its names, the lower directory below it, and its merged entry.

    Attributes:
        below: The lower directory that shows through, at the path `origin`; None if there is none.
        changes: Changes that `entry` does not have yet. They are kept if a scan fails.
        open_fds: Open descriptors of its files.
    """

    __slots__ = (
        "below",
        "changes",
        "clamped_mtime",
        "content_inodes",
        "ctime",
        "depth",
        "dirs",
        "dropped",
        "entry",
        "files",
        "gid",
        "ino",
        "listed",
        "marks",
        "metadata_changed",
        "mode",
        "mtime",
        "name",
        "name_count",
        "open_fds",
        "origin",
        "parent",
        "path",
        "rules_text",
        "skipped",
        "uid",
        "view_wd",
        "wd",
        "whiteouts",
        "xattrs",
    )

    def __init__(self, parent: UpperDirectory | None, name: str, path: bytes) -> None:
        self.parent = parent
        self.name = name
        self.path = path
        self.ino = self.ctime = self.mtime = self.clamped_mtime = self.mode = self.uid = (
            self.gid
        ) = 0
        self.marks: Marks | None = None
        self.below: TreeEntry | None = None
        self.origin: bytes | None = None
        self.xattrs = b""
        self.entry: TreeEntry | None = None
        self.metadata_changed = True  # its metadata is newer than `entry`
        self.rules_text: bytes | None = None  # the text of its ignore file
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.name_count = 0  # number of names at the last visit
        self.dropped = False  # no longer part of the tree
        self.wd = self.view_wd = -1  # watches on it and on its merged directory
        self.open_fds: dict[str, int] = {}
        self.content_inodes: dict[bytes, int] = {}  # files with content of their own
        self.clear()

    def clear(self) -> None:
        """Forget all names. The caller must close the descriptors first."""
        self.listed = False  # all of its names are known
        self.files: dict[str, Stamp] = {}  # everything but directories and whiteouts
        self.whiteouts: set[str] = set()
        self.dirs: dict[str, UpperDirectory] = {}
        self.skipped: set[str] = set()  # ignored directories
        self.changes: dict[bytes, TreeEntry | None] = {}
        self.entry = None

    def names(self) -> set[str]:
        return self.files.keys() | self.whiteouts | self.dirs.keys() | self.skipped

    def recount(self) -> int:
        """Return how many more names there are than at the last visit, without directories."""
        before, self.name_count = self.name_count, len(self.files) + len(self.whiteouts)
        return self.name_count - before

    def drop(self, name: str) -> None:
        self.files.pop(name, None)
        self.dirs.pop(name, None)
        self.whiteouts.discard(name)
        self.skipped.discard(name)
        self.content_inodes.pop(os.fsencode(name), None)

    def clear_watch(self, wd: int) -> None:
        self.wd = -1 if self.wd == wd else self.wd
        self.view_wd = -1 if self.view_wd == wd else self.view_wd

    def update_stat(self, st: os.stat_result) -> bool:
        """Record the stat. Return True if it changed."""
        if st.st_ctime_ns == self.ctime and st.st_ino == self.ino and st.st_mtime_ns == self.mtime:
            return False
        self.ino, self.ctime, self.mtime = st.st_ino, st.st_ctime_ns, st.st_mtime_ns
        self.mode, self.uid, self.gid = st.st_mode, st.st_uid, st.st_gid
        self.clamped_mtime = clamped_mtime(st)
        self.metadata_changed = True
        self.listed = False
        return True

    def walk(self) -> Iterator[UpperDirectory]:
        """Yield this directory and all below it, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += node.dirs.values()


def directory_entry(trees: Trees, node: UpperDirectory, *, keep_owners: bool) -> TreeEntry:
    """Return the merged entry of a directory.

    Without `keep_owners` the owner is that of the lower directory.
    """
    base, below = node.entry or node.below, node.below
    tree = trees.empty() if base is None else TreeRef(Oid(base.data), base.cid)
    if node.changes:
        tree = trees.patch(tree.oid, node.changes)
    uid, gid = node.uid, node.gid
    if below is not None and not keep_owners:
        uid, gid = below.uid, below.gid
    name = os.fsencode(node.name)
    return TreeEntry(
        name, node.mode, node.clamped_mtime, uid, gid, 0, tree.oid, tree.cid, node.xattrs
    )


def is_whiteout(st: os.stat_result) -> bool:
    """Return True for a whiteout of overlayfs."""
    return stat.S_ISCHR(st.st_mode) and st.st_rdev == 0


def read_marks(fd: int, prefix: str) -> tuple[bool, bytes, bool]:
    """Return, for a directory: is it opaque, its redirect, and has it any xattrs."""
    names = os.listxattr(fd)
    opaque, redirect = prefix + "opaque", prefix + "redirect"
    return (
        opaque in names and os.getxattr(fd, opaque) == b"y",
        os.getxattr(fd, redirect) if redirect in names else b"",
        bool(names),
    )


def metacopy_redirect(place: bytes, prefix: str) -> bytes | None:
    """Return the redirect of a file without its own content, or None if it has content."""
    if _attribute(place, prefix + "metacopy") is None:
        return None
    return _attribute(place, prefix + "redirect") or b""


def with_metadata(
    below: TreeEntry | None, st: os.stat_result, *, path: bytes, xattrs: bytes
) -> TreeEntry:
    """Return the entry of a lower file with the name and metadata of the upper one."""
    if below is None or not below.is_file:
        raise Corrupt(
            "bad_layer",
            f"{os.fsdecode(path)} rests on a file that its layers do not hold: restore a commit",
        )
    return replace(
        below,
        name=path.rpartition(b"/")[2],
        mode=st.st_mode,
        mtime=clamped_mtime(st),
        uid=st.st_uid,
        gid=st.st_gid,
        xattrs=xattrs,
    )


def read_rules(fd: int, below: bytes | None) -> bytes | None:
    """Return the text of a directory's ignore file.

    `below` is the text of the lower file, which counts if the upper directory has none.
    """
    try:
        mode = os.stat(IGNORE_FILE, dir_fd=fd, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode):
            return None
        own = open_noatime(IGNORE_FILE, fd)
    except FileNotFoundError:
        return below
    except OSError:
        return None
    try:
        return os.read(own, _MAX_IGNORE_FILE_BYTES)
    finally:
        os.close(own)


def oversize_loss(rules: IgnoreRules, path: bytes, st: os.stat_result) -> Loss | None:
    """Return the loss for a file that a size rule leaves out, or None."""
    if rules.is_empty or not stat.S_ISREG(st.st_mode):
        return None
    limit = rules.size_limit(path)
    if limit is None or st.st_size <= limit:
        return None
    why = f"its {st.st_size} bytes are more than the {limit} that {os.fsdecode(IGNORE_FILE)} allows"
    return Loss(os.fsdecode(path), "size", why)


def _attribute(place: bytes, name: str) -> bytes | None:
    try:
        return os.getxattr(place, name, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.ENODATA:
            return None
        raise


class DifferenceRules(Protocol):
    """How an upper directory becomes a difference from a directory of the host, not a tree."""

    def is_skipped(self, path: bytes, is_dir: bool) -> bool:
        """Return True if the path is not part of the difference."""

    def removed_entry(self, path: bytes) -> TreeEntry | None:
        """Return the entry of a removed name."""

    def is_unchanged(self, fd: int, raw: bytes, st: os.stat_result, path: bytes) -> bool:
        """Return True if the name `raw` in the directory `fd` is no difference."""

    def directory_entry(self, node: UpperDirectory, entry: TreeEntry) -> TreeEntry:
        """Return the entry of a directory in the difference."""

    def has_own_changes(self, node: UpperDirectory, entry: TreeEntry) -> bool:
        """Return True if a directory differs, apart from its names."""


class UpperEntryReader:
    """Captures names, with the lower layers and the ignore rules. It collects the losses.

    With `difference`, a name is captured as a difference from the host.
    """

    def __init__(
        self,
        objects: ObjectStore,
        trees: Trees,
        below: TreeEntry,
        *,
        is_root: bool,
        difference: DifferenceRules | None = None,
    ) -> None:
        self.is_root = is_root
        self.prefix = "trusted.overlay." if is_root else "user.overlay."
        self.rules = IgnoreRules()
        self.losses: list[Loss] = []
        self.oversize_losses: dict[bytes, Loss] = {}
        self.has_ignored_files = False  # an ignored file was found
        self._objects = objects
        self._trees = trees
        self._below = below
        self._difference = difference

    def merge_losses(self) -> None:
        """Add all files that are too large to the losses: every scan must report them."""
        if self.losses or self.oversize_losses:
            self.losses = list(dict.fromkeys((*self.losses, *self.oversize_losses.values())))

    def lower_entry(self, node: UpperDirectory, raw: bytes) -> TreeEntry | None:
        """Return the entry of this name in the lower layers."""
        return None if node.below is None else self._trees.lookup(Oid(node.below.data), raw)

    def lower_entry_at(self, path: bytes) -> TreeEntry | None:
        """Return the entry of a path in the lower layers."""
        return self._trees.resolve(self._below, path)

    def read_entry(
        self,
        node: UpperDirectory,
        raw: bytes,
        st: os.stat_result,
        *,
        fd: int,
        path: bytes,
        mapped: bool,
    ) -> tuple[TreeEntry | None, os.stat_result]:
        """Return the entry of a name and its stat. The entry is None if the name is not state."""
        entry, st = self._read(node, raw, st, fd=fd, path=path, mapped=mapped)
        rules = self._difference
        if rules is None or entry is None or entry.flags:
            return entry, st
        return None if rules.is_unchanged(fd, raw, st, path) else entry, st

    def _read(
        self,
        node: UpperDirectory,
        raw: bytes,
        st: os.stat_result,
        *,
        fd: int,
        path: bytes,
        mapped: bool,
    ) -> tuple[TreeEntry | None, os.stat_result]:
        if is_whiteout(st):
            return None if self._difference is None else self._difference.removed_entry(path), st
        if self.is_skipped(path, False) or self._is_oversize(path, st):
            self.has_ignored_files = True
            return None, st
        if self.is_root and stat.S_ISREG(st.st_mode) and node.content_inodes.get(raw) != st.st_ino:
            copied_up = self._metacopy(node, raw, st, fd=fd)
            if copied_up is not None:
                return copied_up, st
            node.content_inodes[raw] = st.st_ino  # content in the upper directory stays there
        seen = capture_with_stat(
            self._objects, fd, raw, st, path=path, losses=self.losses, mapped=mapped
        )
        if seen is None:  # removed in the meantime
            node.listed = False
            return self.lower_entry(node, raw), st
        return self._with_lower_owner(node, seen[0]), seen[1]

    def _metacopy(
        self, node: UpperDirectory, raw: bytes, st: os.stat_result, *, fd: int
    ) -> TreeEntry | None:
        """Return the entry of a file with only its metadata copied up, or None.

        Its content is that of the file in the lower layers.
        """
        place = b"/proc/self/fd/%d/%s" % (fd, raw)
        redirect = metacopy_redirect(place, self.prefix)
        if redirect is None:
            return None
        if redirect.startswith(b"/"):
            below = self.lower_entry_at(redirect[1:])
        else:
            below = self.lower_entry(node, redirect or raw)
        xattrs = put_xattrs(self._objects, place)
        return with_metadata(below, st, path=join_path(node.path, raw), xattrs=xattrs)

    def _with_lower_owner(self, node: UpperDirectory, entry: TreeEntry) -> TreeEntry:
        """Keep the lower owner without root, because an ordinary user cannot change owners."""
        if self.is_root:
            return entry
        below = self.lower_entry(node, entry.name)
        return entry if below is None else replace(entry, uid=below.uid, gid=below.gid)

    def _is_oversize(self, path: bytes, st: os.stat_result) -> bool:
        loss = oversize_loss(self.rules, path, st)
        if loss is not None:
            self.oversize_losses[path] = loss
        return loss is not None

    def is_skipped(self, path: bytes, is_dir: bool) -> bool:
        """Return True if the path is not state."""
        if self._difference is not None:
            return self._difference.is_skipped(path, is_dir)
        return self.rules.is_ignored(path, is_dir)

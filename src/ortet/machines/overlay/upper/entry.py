"""Captures one name of an upper directory as its entry in the merged directory."""

from __future__ import annotations

import errno
import os
import stat
from typing import Protocol

from msgspec.structs import replace

from ortet.errors import Corrupt
from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Loss
from ortet.machines.capture.entry import capture_with_stat, clamped_mtime, open_noatime, put_xattrs
from ortet.machines.capture.ignore_rules import IGNORE_FILE, IgnoreRules
from ortet.machines.dirfd import join_path
from ortet.machines.overlay.upper.uppernode import UpperDirectory, is_whiteout
from ortet.objects.base import ObjectStore

# Reads the marks of overlayfs on files of an upper directory, and its ignore files.

_MAX_IGNORE_FILE_BYTES = 1 << 20


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
            found = self._metacopy(node, raw, st, fd=fd)
            if found is not None:
                return found, st
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

"""One name of an upper directory -> its Entry in the merged one."""

from __future__ import annotations

import os
import stat

from msgspec.structs import replace

from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Loss
from ortet.machines.capture.entry import capture_with_stat, put_xattrs
from ortet.machines.capture.hardlinks import join_path
from ortet.machines.capture.ignore_rules import IgnoreRules
from ortet.machines.overlay.upper.uppermarks import metacopy_redirect, oversize_loss, with_metadata
from ortet.machines.overlay.upper.uppernode import UpperDirectory, is_whiteout
from ortet.objects.base import ObjectStore


class UpperEntryReader:
    """Knows the layers below and the rules; collects what could not be taken."""

    def __init__(
        self, objects: ObjectStore, trees: Trees, below: TreeEntry, *, is_root: bool
    ) -> None:
        self.is_root = is_root
        self.prefix = "trusted.overlay." if is_root else "user.overlay."
        self.rules = IgnoreRules()
        self.losses: list[Loss] = []
        self.oversize_losses: dict[bytes, Loss] = {}
        self.has_ignored_files = False  # something was no state
        self._objects = objects
        self._trees = trees
        self._below = below

    def merge_losses(self) -> None:
        """After a scan: what is known to be too large is missing each time."""
        if self.losses or self.oversize_losses:
            self.losses = list(dict.fromkeys((*self.losses, *self.oversize_losses.values())))

    def lower_entry(self, node: UpperDirectory, raw: bytes) -> TreeEntry | None:
        """What lies below this name."""
        return None if node.below is None else self._trees.lookup(Oid(node.below.data), raw)

    def lower_entry_at(self, path: bytes) -> TreeEntry | None:
        """What lies at a path of the layers below."""
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
        """The Entry of a name and the stat it belongs to; None where it is no state."""
        if is_whiteout(st):
            return self.removed_entry(path), st
        if self.is_skipped(path, False) or self._is_oversize(path, st):
            self.has_ignored_files = True
            return None, st
        if self.is_root and stat.S_ISREG(st.st_mode) and node.content_inodes.get(raw) != st.st_ino:
            found = self._metacopy(node, raw, st, fd=fd)
            if found is not None:
                return found, st
            node.content_inodes[raw] = st.st_ino  # content that is here does not go away again
        seen = capture_with_stat(
            self._objects, fd, raw, st, path=path, losses=self.losses, mapped=mapped
        )
        if seen is None:  # gone between two looks
            node.listed = False
            return self.lower_entry(node, raw), st
        return self._with_lower_owner(node, seen[0]), seen[1]

    def _metacopy(
        self, node: UpperDirectory, raw: bytes, st: os.stat_result, *, fd: int
    ) -> TreeEntry | None:
        """A file of which only the metadata was copied up: its content is that of the one below."""
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
        """Without root no owner can be given or changed: the one below stands."""
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
        """Is it no state?"""
        return self.rules.is_ignored(path, is_dir)

    def removed_entry(self, path: bytes) -> TreeEntry | None:  # noqa: ARG002 - for differences
        """What a name that was taken away leaves in the tree."""
        return None

"""One name of an upper directory -> its Entry in the merged one."""

from __future__ import annotations

import os
import stat

from msgspec.structs import replace

from ortet.history.records import Entry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Loss
from ortet.machines.capture.entry import look, put_xattrs
from ortet.machines.capture.hardlinks import join
from ortet.machines.capture.ignore_rules import Rules
from ortet.machines.overlay.upper.uppermarks import metacopy, oversize, with_metadata
from ortet.machines.overlay.upper.uppernode import Node, is_gone
from ortet.objects.base import Objects


class Taker:
    """Knows the layers below and the rules; collects what could not be taken."""

    def __init__(self, objects: Objects, trees: Trees, below: Entry, *, root: bool) -> None:
        self.root = root
        self.prefix = "trusted.overlay." if root else "user.overlay."
        self.rules = Rules()
        self.losses: list[Loss] = []
        self.too_large: dict[bytes, Loss] = {}
        self.ignoring = False  # something was no state
        self._objects = objects
        self._trees = trees
        self._below = below

    def sum_up(self) -> None:
        """After a scan: what is known to be too large is missing each time."""
        if self.losses or self.too_large:
            self.losses = list(dict.fromkeys((*self.losses, *self.too_large.values())))

    def lower(self, node: Node, raw: bytes) -> Entry | None:
        """What lies below this name."""
        return None if node.below is None else self._trees.lookup(Oid(node.below.data), raw)

    def deep(self, path: bytes) -> Entry | None:
        """What lies at a path of the layers below."""
        return self._trees.resolve(self._below, path)

    def entry(
        self, node: Node, raw: bytes, st: os.stat_result, *, fd: int, path: bytes, mapped: bool
    ) -> tuple[Entry | None, os.stat_result]:
        """The Entry of a name and the stat it belongs to; None where it is no state."""
        if is_gone(st):
            return self.whiteout(path), st
        if self.skip(path, False) or self._exceeds(path, st):
            self.ignoring = True
            return None, st
        if self.root and stat.S_ISREG(st.st_mode) and node.full.get(raw) != st.st_ino:
            found = self._metacopy(node, raw, st, fd=fd)
            if found is not None:
                return found, st
            node.full[raw] = st.st_ino  # content that is here does not go away again
        seen = look(self._objects, fd, raw, st, path=path, losses=self.losses, mapped=mapped)
        if seen is None:  # gone between two looks
            node.listed = False
            return self.lower(node, raw), st
        return self._owned(node, seen[0]), seen[1]

    def _metacopy(self, node: Node, raw: bytes, st: os.stat_result, *, fd: int) -> Entry | None:
        """A file of which only the metadata was copied up: its content is that of the one below."""
        place = b"/proc/self/fd/%d/%s" % (fd, raw)
        redirect = metacopy(place, self.prefix)
        if redirect is None:
            return None
        if redirect.startswith(b"/"):
            below = self.deep(redirect[1:])
        else:
            below = self.lower(node, redirect or raw)
        xattrs = put_xattrs(self._objects, place)
        return with_metadata(below, st, path=join(node.path, raw), xattrs=xattrs)

    def _owned(self, node: Node, entry: Entry) -> Entry:
        """Without root no owner can be given or changed: the one below stands."""
        if self.root:
            return entry
        below = self.lower(node, entry.name)
        return entry if below is None else replace(entry, uid=below.uid, gid=below.gid)

    def _exceeds(self, path: bytes, st: os.stat_result) -> bool:
        loss = oversize(self.rules, path, st)
        if loss is not None:
            self.too_large[path] = loss
        return loss is not None

    def skip(self, path: bytes, is_dir: bool) -> bool:
        """Is it no state?"""
        return self.rules.ignored(path, is_dir)

    def whiteout(self, path: bytes) -> Entry | None:  # noqa: ARG002 - for differences
        """What a name that was taken away leaves in the tree."""
        return None

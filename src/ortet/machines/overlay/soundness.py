"""Checks that a layer on disk is still complete, once after each boot of the host.

This is a module of its own because it is the only code of layers that reads their content.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

from ortet.errors import OrtetError
from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.machines.dirfd import DirFdCache, open_directory
from ortet.machines.overlay.upper.scanner import UpperScanner
from ortet.machines.standalone.syscalls import is_privileged
from ortet.objects.base import ObjectStore


class LowerLayers(Protocol):
    """The layers below a layer."""

    @property
    def root(self) -> TreeEntry: ...


def is_layer_intact(
    objects: ObjectStore, trees: Trees, place: Path, root: TreeEntry, below: LowerLayers | None
) -> bool:
    """Return True if a layer is as it was built.

    A crash of the host loses the ends of files, which sizes and times show. A layer on top of
    others is scanned completely.
    """
    try:
        if below is None:
            return _matches_tree(trees, place, root)
        upper = UpperScanner(objects, trees, place, below=below.root, is_root=is_privileged())
        try:
            return upper.scan() == root
        finally:
            upper.close()
    except (OSError, OrtetError):
        return False


def _matches_tree(trees: Trees, place: Path, root: TreeEntry) -> bool:
    with open_directory(place) as top, DirFdCache(top) as dirs:
        for path, entry in trees.walk(root):
            at, name = dirs.open_parent(path)
            st = os.stat(name, dir_fd=at, follow_symlinks=False)
            if stat.S_IFMT(st.st_mode) != stat.S_IFMT(entry.mode):
                return False
            if entry.is_file and (st.st_size, st.st_mtime_ns) != (entry.size, entry.mtime):
                return False
    return True

"""Is a layer on disk still what it was made to be? Asked once after each start of the host."""

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
    """What lies under a layer."""

    @property
    def root(self) -> TreeEntry: ...


def is_layer_intact(
    objects: ObjectStore, trees: Trees, place: Path, root: TreeEntry, below: LowerLayers | None
) -> bool:
    """A crash loses the ends of files: sizes and times tell. A layer on others is read whole."""
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

"""Is a layer on disk still what it was made to be? Asked once after each start of the host."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

from ortet.errors import OrtetError
from ortet.history.records import Entry
from ortet.history.tree.tree import Trees
from ortet.machines.dirfd import Dirs, directory
from ortet.machines.overlay.upper.scanner import Upper
from ortet.machines.standalone.syscalls import privileged
from ortet.objects.base import Objects


class Below(Protocol):
    """What lies under a layer."""

    @property
    def root(self) -> Entry: ...


def is_sound(objects: Objects, trees: Trees, place: Path, root: Entry, below: Below | None) -> bool:
    """A crash loses the ends of files: sizes and times tell. A layer on others is read whole."""
    try:
        if below is None:
            return _has_all(trees, place, root)
        upper = Upper(objects, trees, place, below=below.root, root=privileged())
        try:
            return upper.scan() == root
        finally:
            upper.close()
    except (OSError, OrtetError):
        return False


def _has_all(trees: Trees, place: Path, root: Entry) -> bool:
    with directory(place) as top, Dirs(top) as dirs:
        for path, entry in trees.walk(root):
            at, name = dirs.parent(path)
            st = os.stat(name, dir_fd=at, follow_symlinks=False)
            if stat.S_IFMT(st.st_mode) != stat.S_IFMT(entry.mode):
                return False
            if entry.is_file and (st.st_size, st.st_mtime_ns) != (entry.size, entry.mtime):
                return False
    return True

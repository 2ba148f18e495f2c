"""Shares the content of unchanged files with a live directory by reflinks, where possible."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

from ortet.machines.capture.stat_index import StatIndex, stat_record
from ortet.machines.dirfd import DirFdCache
from ortet.machines.restore.write_tree import TreeItem

FICLONE = 0x40049409
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UNSUPPORTED_ERRNOS = frozenset(
    {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS}
)


class ReflinkCloner:
    """Clones files from the directory `source`, whose stat index is `index`.

    `usable` becomes False when the kernel reports that reflinks do not work between the two places.
    """

    def __init__(self, source: Path, index: StatIndex) -> None:
        self.usable = True
        self._index = index
        self._top = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._dirs = DirFdCache(self._top)
        self._lock = threading.Lock()

    def __enter__(self) -> ReflinkCloner:
        return self

    def __exit__(self, *_: object) -> None:
        self._dirs.close()
        os.close(self._top)

    def clone_into(self, item: TreeItem, fd: int) -> bool:
        """Fill the new file `fd` from the source, if the source still has the item's content."""
        if not self.usable:
            return False
        try:
            with self._lock:
                at, name = self._dirs.open_parent(item.path)
                source = os.open(name, _OPEN, dir_fd=at)
        except OSError:
            return False
        try:
            before = os.fstat(source)
            return self._has_content(item, before) and self._clone(source, before, fd)
        finally:
            os.close(source)

    def _has_content(self, item: TreeItem, now: os.stat_result) -> bool:
        with self._lock:
            known = self._index.lookup(item.path, now)
        want = item.entry
        return (
            known is not None
            and known.is_file
            and (known.data, known.size, known.holes) == (want.data, want.size, want.holes)
        )

    def _clone(self, source: int, before: os.stat_result, fd: int) -> bool:
        try:
            fcntl.ioctl(fd, FICLONE, source)
        except OSError as error:
            self.usable = self.usable and error.errno not in _UNSUPPORTED_ERRNOS
            return False
        if stat_record(os.fstat(source)) == stat_record(before):
            return True
        os.ftruncate(fd, 0)  # the source was written to during the clone
        return False

"""Access to directories below a root by open descriptors.

No symlink is followed, and a path can have any length.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from ortet.errors import Corrupt, OrtetError, Refused, Unavailable, Unsupported

OPEN_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

STAGE_PREFIX = b".ortet.stage."
"""The prefix of every directory that Ortet builds in. Such a name is never state."""


class DirFdCache:
    """Cache of open directories below `root`; the last `max_open` used stay open.

    A descriptor from `fd(path)` is valid until `max_open` other paths were asked for. Only one
    thread may use the cache at a time.
    """

    def __init__(self, root: int, *, max_open: int = 64) -> None:
        self._root = root
        self._max_open = max_open
        self._open: dict[bytes, int] = {}

    def fd(self, path: bytes) -> int:
        if not path:
            return self._root
        fd = self._open.pop(path, None)
        if fd is None:
            fd = self._descend(path)
        self._open[path] = fd
        return fd

    def open_parent(self, path: bytes) -> tuple[int, bytes]:
        """Return the descriptor of the directory that holds `path`, and the checked last name."""
        above, _, name = path.rpartition(b"/")
        return self.fd(above), check_name(name)

    def close_tree(self, path: bytes) -> None:
        """Close `path` and everything below it, before they are moved or removed."""
        below = path + b"/"
        for known in [p for p in self._open if p == path or p.startswith(below)]:
            os.close(self._open.pop(known))

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def __enter__(self) -> DirFdCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _descend(self, path: bytes) -> int:
        """Open from the nearest open ancestor, and cache the directories on the way."""
        above, rest = path, []
        while above and above not in self._open:
            above, _, name = above.rpartition(b"/")
            rest.append(check_name(name))
        here = self._open[above] if above else self._root
        while True:
            name = rest.pop()
            here = os.open(name, OPEN_DIR_FLAGS, dir_fd=here)
            if not rest:
                break
            above = above + b"/" + name if above else name
            self._open[above] = here
            self._trim()
        self._trim()
        return here

    def _trim(self) -> None:
        while len(self._open) >= self._max_open:
            os.close(self._open.pop(next(iter(self._open))))


def join_path(directory: bytes, name: bytes) -> bytes:
    """Return the path of `name` in `directory`; b"" is the root."""
    return directory + b"/" + name if directory else name


def check_name(name: bytes) -> bytes:
    """Return a name, or raise Corrupt if it is not one plain name.

    This is the last check before a name from a store is used in the file system.
    """
    if not name or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise Corrupt(
            "bad_name",
            f"the image holds the name {name!r}, which could lead outside: run `ortet verify`",
        )
    return name


@contextlib.contextmanager
def open_directory(
    path: str | bytes | os.PathLike[str], dir_fd: int | None = None
) -> Iterator[int]:
    """Yield a descriptor of a directory, and close it at the end."""
    fd = os.open(path, OPEN_DIR_FLAGS, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def remove_tree(dir_fd: int, name: bytes) -> None:
    """Delete a file or a directory with everything in it. A missing name is no error.

    Deeper directories are first moved up, so that no depth exhausts descriptors or the stack.
    """
    if not _unlink(dir_fd, name):
        return
    with open_writable_directory(dir_fd, name) as top:
        waiting = _clear(top)
        taken = set(waiting)
        count = 0
        while waiting:
            here = waiting.pop()
            with open_writable_directory(top, here) as fd:
                for inner in _clear(fd):
                    while (moved := b"%s%d" % (STAGE_PREFIX, count)) in taken:
                        count += 1
                    taken.add(moved)
                    with open_writable_directory(
                        fd, inner
                    ):  # moving a directory needs write permission on it
                        os.rename(inner, moved, src_dir_fd=fd, dst_dir_fd=top)
                    waiting.append(moved)
            os.rmdir(here, dir_fd=top)
    os.rmdir(name, dir_fd=dir_fd)


def _clear(fd: int) -> list[bytes]:
    """Remove everything but directories from a directory, and return the rest of the names."""
    names = [os.fsencode(name) for name in os.listdir(fd)]
    return [name for name in names if _unlink(fd, name)]


def _unlink(dir_fd: int, name: bytes) -> bool:
    """Remove a name unless it is a directory. Return True if it is a directory."""
    try:
        os.unlink(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    except OSError:
        # A read-only file system reports EROFS before it checks that the name exists.
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
                raise
            return True
    return False


@contextlib.contextmanager
def open_writable_directory(dir_fd: int, name: bytes) -> Iterator[int]:
    """Yield a descriptor of our own directory, after making it writable whatever its mode was."""
    try:
        fd = os.open(name, OPEN_DIR_FLAGS, dir_fd=dir_fd)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=dir_fd)
        fd = os.open(name, OPEN_DIR_FLAGS, dir_fd=dir_fd)
    try:
        if os.fstat(fd).st_mode & 0o700 != 0o700 and os.geteuid():
            os.fchmod(fd, 0o700)
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def writable_for_rename(dir_fd: int, name: bytes) -> Iterator[None]:
    """Make a directory writable during a rename.

    A rename to another parent needs write permission on the directory itself.
    """
    now = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    if not stat.S_ISDIR(now.st_mode) or now.st_mode & 0o200 or not os.geteuid():
        yield
        return
    with open_writable_directory(dir_fd, name) as fd:
        try:
            yield
        finally:
            os.fchmod(fd, stat.S_IMODE(now.st_mode))


def translate_os_error(error: OSError, operation: str) -> OrtetError:
    """Return an Ortet error for an OSError, with the operation and what to do next."""
    why = f"{operation}: {error.strerror or error}"
    code = error.errno
    if code in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable("disk_full", f"{why}; free some space, then repeat the call")
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Refused("not_permitted", f"{why}; make the place writable, or choose another")
    if code in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.EEXIST, errno.EFBIG):
        return Unsupported(
            "file_system", f"{why}; this file system cannot hold it, choose another place"
        )
    if code in (errno.EXDEV, errno.EBUSY):
        return Unsupported("crosses_mount", f"{why}; another file system is mounted there")
    return Unavailable("io_error", f"{why}; look at the disk, then repeat the call")

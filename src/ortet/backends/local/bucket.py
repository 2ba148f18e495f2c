"""The Bucket in a directory: one file per object. A hard link publishes it and replaces nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ortet.backends.base import Bucket, BucketEntry
from ortet.backends.errors import key_exists, no_key
from ortet.backends.keys import check_key, check_prefix, check_range
from ortet.errors import Invalid, NotFound, OrtetError, Unavailable
from ortet.ids import Random

# Keys never contain "~", so these names cannot collide with an object.
_TEMPORARY_DIRECTORY = "~new"
_LOCK = "~lock"

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}


class FileBucket(Bucket):
    """Stores objects as files below `root`, which is created if it does not exist.

    A file is synced before it gets its name, and its directory after that. So every visible object
    survives a power cut. A key cannot be the directory of another key: that put raises Conflict.
    """

    def __init__(self, root: Path, random: Random = os.urandom) -> None:
        self._root = Path(root)
        self._random = random
        self._synced: set[Path] = set()
        with _translate_errors("open the bucket", str(root)):
            self._make_directory(self._root / _TEMPORARY_DIRECTORY)
            self._drop_leftovers()

    def put(self, key: str, data: bytes) -> None:
        with _translate_errors("store", check_key(key)), self._temporary() as (fd, temp):
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            self._publish(fd, temp, key)

    def put_file(self, key: str, path: Path) -> None:
        """Move the file if it is on the same file system; otherwise copy and delete it."""
        check_key(key)
        with _translate_errors("store", key):
            fd = _open_regular(path)
            try:
                self._move_or_copy(fd, path, key)
            finally:
                os.close(fd)
            path.unlink(missing_ok=True)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(start, length)
        with self._open_object(key) as fd:
            return _read(fd, start, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        for start, length in ranges:
            check_range(start, length)
        with self._open_object(key) as fd:
            return [_read(fd, start, length) for start, length in ranges]

    def size(self, key: str) -> int:
        with _translate_errors("look at", check_key(key)):
            status = os.stat(self._root / key)
            if not stat.S_ISREG(status.st_mode):
                raise no_key(key)
            return status.st_size

    def check_reachable(self, seconds: float) -> None:
        del seconds
        with _translate_errors("look into", str(self._root)):
            os.stat(self._root / _TEMPORARY_DIRECTORY)

    def list(self, prefix: str = "") -> Iterator[BucketEntry]:
        parent = check_prefix(prefix).rpartition("/")[0]
        with _translate_errors("list", prefix):
            yield from _walk(self._root / parent, parent + "/" if parent else "", prefix)

    def delete(self, keys: Sequence[str], *, sync: bool = True) -> None:
        """Delete objects. Without `sync`, a power cut may bring them back."""
        parents: set[Path] = set()
        for key in keys:
            path = self._root / check_key(key)
            with _translate_errors("delete", key), suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                parents.add(path.parent)
        for parent in parents if sync else ():
            sync_directory(parent)

    def local_path(self, key: str) -> Path | None:
        path = self._root / check_key(key)
        return path if path.is_file() else None

    @contextmanager
    def _open_object(self, key: str) -> Iterator[int]:
        with _translate_errors("read", check_key(key)):
            fd = os.open(self._root / key, os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield fd
            finally:
                os.close(fd)

    def _move_or_copy(self, fd: int, path: Path, key: str) -> None:
        try:
            self._publish(fd, path, key)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            import shutil  # noqa: PLC0415 - a command that does not need it starts faster

            with self._temporary() as (copy, temp), open(fd, "rb", closefd=False) as source:
                with open(copy, "wb", closefd=False) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                self._publish(copy, temp, key)

    def _publish(self, fd: int, path: Path, key: str) -> None:
        """Give a finished file its key, unless the key is taken. Durable on return."""
        target = self._root / key
        os.fsync(fd)
        try:
            self._make_directory(target.parent)
            self._link(path, target)
            try:
                sync_directory(target.parent)
            except OSError:
                with suppress(OSError):  # absent is better than perhaps not durable
                    os.rename(target, path)  # does nothing if both names are the same file;
                    target.unlink(missing_ok=True)  # then this removes the name
                raise
        except FileExistsError as error:
            # The other writer may not have synced yet, and the caller relies on the existing
            # object.
            sync_directory(target.parent)
            raise key_exists(key) from error
        except NotADirectoryError as error:
            raise key_exists(key) from error

    def _link(self, path: Path, target: Path) -> None:
        try:
            os.link(path, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with open(self._root / _LOCK, "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if os.path.lexists(target):
                    raise FileExistsError(errno.EEXIST, "exists", str(target)) from error
                os.rename(path, target)

    @contextmanager
    def _temporary(self) -> Iterator[tuple[int, Path]]:
        """Create a temporary file under flock.

        An unlocked one is a leftover that may be deleted.
        """
        while True:
            path = self._root / _TEMPORARY_DIRECTORY / self._random(16).hex()
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                break
            os.close(fd)  # another process deleted it as a leftover before it was locked
        try:
            yield fd, path
        finally:
            path.unlink(missing_ok=True)
            os.close(fd)

    def _drop_leftovers(self) -> None:
        for path in (self._root / _TEMPORARY_DIRECTORY).iterdir():
            with suppress(OSError), open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()

    def _make_directory(self, path: Path) -> None:
        """Create a directory and sync its name, even if another process has just created it."""
        if path in self._synced:
            return
        if not path.is_dir():
            if path != path.parent:
                self._make_directory(path.parent)
            with suppress(FileExistsError):
                path.mkdir()
        sync_directory(path.parent)
        self._synced.add(path)


def _read(fd: int, start: int, length: int | None) -> bytes:
    """Read a range. The buffer is limited by the file size, so a huge `length` costs nothing."""
    rest = max(os.fstat(fd).st_size - start, 0)
    rest = rest if length is None else min(rest, length)
    data = os.pread(fd, rest, start)
    while len(data) < rest and (more := os.pread(fd, rest - len(data), start + len(data))):
        data += more  # one call reads at most 2 GiB
    return data


def _walk(directory: Path, base: str, prefix: str) -> Iterator[BucketEntry]:
    """Iterate over files below a directory in key order. A directory sorts as NAME/."""
    try:
        entries = [(e.name + "/" if e.is_dir() else e.name, e) for e in os.scandir(directory)]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name, entry in sorted(entries, key=lambda pair: pair[0]):
        key = base + name
        if "~" in name or not (key.startswith(prefix) or prefix.startswith(key)):
            continue
        if name.endswith("/"):
            yield from _walk(directory / entry.name, key, prefix)
        elif key.startswith(prefix):
            with suppress(FileNotFoundError):  # deleted after the directory was read
                yield BucketEntry(key, entry.stat().st_size)


def _open_regular(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFound("no_file", f"there is no file {path} to store: look at the path") from error
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _not_a_file(path) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _not_a_file(path)
    return fd


def _not_a_file(path: Path) -> Invalid:
    return Invalid("not_a_file", f"{path} is not a regular file: only those can be stored")


def sync_directory(path: Path) -> None:
    """Sync a directory, so that the names in it are durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _translate_errors(act: str, key: str) -> Iterator[None]:
    """Translate operating system errors into ours."""
    try:
        yield
    except OSError as error:
        raise _error(act, key, error) from error


def _error(act: str, key: str, error: OSError) -> OrtetError:
    why = error.strerror or str(error)
    if error.errno in _ABSENT:
        return no_key(key)
    if error.errno in _FULL:
        return Unavailable(
            "disk_full", f"cannot {act} {key!r}, {why}: free some space and try again"
        )
    return Unavailable(
        "no_access", f"cannot {act} {key!r}, {why}: check the directory and its permissions"
    )

"""The local disk cache of remote packs and frames.

Any file may be lost or damaged at any time. It is then fetched again.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

CACHE_LIMIT_BYTES = 2 << 30
_PART = ".part"


class PackCache:
    """Files in one directory, by name. Writes are not synced, and a failed write is ignored."""

    def __init__(self, directory: Path, limit: int = CACHE_LIMIT_BYTES) -> None:
        self._directory = directory
        self._limit = limit
        self._bytes_since_prune = 0
        directory.mkdir(exist_ok=True)

    def open(self, name: str) -> int | None:
        """Return a descriptor, which the caller closes, or None if the file is not cached."""
        try:
            fd = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        with suppress(OSError):  # marks it as recently used for `prune`
            os.utime(fd)
        return fd

    def has(self, name: str) -> bool:
        """Return True if the file is cached."""
        return os.path.exists(self._directory / name)

    def get(self, name: str) -> bytes | None:
        """Return the content of a cached file, or None."""
        fd = self.open(name)
        if fd is None:
            return None
        with open(fd, "rb") as file:
            return file.read()

    def put(self, name: str, data: bytes) -> None:
        """Write a file to the cache. Errors of the disk are ignored."""
        part = self._part(name)
        with suppress(OSError):
            try:
                part.write_bytes(data)
                os.replace(part, self._directory / name)
                self._count_added(len(data))
            finally:
                part.unlink(missing_ok=True)

    def link_file(self, name: str, path: Path) -> None:
        """Add a hard link to a file that is about to be deleted."""
        with suppress(OSError):
            os.link(path, self._directory / name)
            self._count_added(path.stat().st_size)

    def remove(self, prefix: str) -> None:
        """Delete every file whose name begins with `prefix`."""
        for entry in self._entries():
            if entry.name.startswith(prefix):
                with suppress(OSError):
                    os.unlink(entry.path)

    def retain_packs(self, ids: set[str]) -> None:
        """Delete the files of all packs that are not in `ids`."""
        for entry in self._entries():
            if entry.name.partition(".")[0] not in ids:
                with suppress(OSError):
                    os.unlink(entry.path)

    def prune(self) -> None:
        """If the limit is exceeded, delete the least recently used files, down to 3/4 of it."""
        self._bytes_since_prune = 0
        files: list[tuple[int, int, str]] = []
        for entry in self._entries():
            with suppress(OSError):
                status = entry.stat()
                files.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        if total <= self._limit:
            return
        for _, size, path in sorted(files):
            if total <= self._limit * 3 // 4:
                break
            with suppress(OSError):
                os.unlink(path)
                total -= size

    def _count_added(self, size: int) -> None:
        self._bytes_since_prune += size
        if self._bytes_since_prune > self._limit // 8:
            self.prune()

    def _part(self, name: str) -> Path:
        return self._directory / f"{name}.{os.getpid()}.{threading.get_ident()}{_PART}"

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._directory) as entries:
                return list(entries)
        except OSError:
            return []

"""What this host keeps of a bucket that is elsewhere: packs, whole or by frames. It may lose any of
it any time; what is damaged is fetched again."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

CACHE_LIMIT_BYTES = 2 << 30
_PART = ".part"


class PackCache:
    """Files of a directory, by name. Nothing is synced, and a full disk keeps nothing."""

    def __init__(self, directory: Path, limit: int = CACHE_LIMIT_BYTES) -> None:
        self._directory = directory
        self._limit = limit
        self._bytes_since_prune = 0
        directory.mkdir(exist_ok=True)

    def open(self, name: str) -> int | None:
        """A descriptor, to be closed by the caller; None when it is not here."""
        try:
            fd = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        with suppress(OSError):  # what was used last goes last
            os.utime(fd)
        return fd

    def has(self, name: str) -> bool:
        return os.path.exists(self._directory / name)

    def get(self, name: str) -> bytes | None:
        fd = self.open(name)
        if fd is None:
            return None
        with open(fd, "rb") as file:
            return file.read()

    def put(self, name: str, data: bytes) -> None:
        part = self._part(name)
        with suppress(OSError):
            try:
                part.write_bytes(data)
                os.replace(part, self._directory / name)
                self._count_added(len(data))
            finally:
                part.unlink(missing_ok=True)

    def link_file(self, name: str, path: Path) -> None:
        """Keep a file that is about to go."""
        with suppress(OSError):
            os.link(path, self._directory / name)
            self._count_added(path.stat().st_size)

    def remove(self, prefix: str) -> None:
        """Everything whose name begins so."""
        for entry in self._entries():
            if entry.name.startswith(prefix):
                with suppress(OSError):
                    os.unlink(entry.path)

    def retain_packs(self, ids: set[str]) -> None:
        """Of packs that are gone nothing is needed."""
        for entry in self._entries():
            if entry.name.partition(".")[0] not in ids:
                with suppress(OSError):
                    os.unlink(entry.path)

    def prune(self) -> None:
        """Remove what was not used for the longest time, down to three quarters of the limit."""
        self._bytes_since_prune = 0
        found: list[tuple[int, int, str]] = []
        for entry in self._entries():
            with suppress(OSError):
                status = entry.stat()
                found.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        if total <= self._limit:
            return
        for _, size, path in sorted(found):
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

"""What no commit can do without: its bytes on the disk, then its head, one after the other."""

from __future__ import annotations

import os
import time
from pathlib import Path

import apsw

BYTES = 32 * 1024
"""About what a commit of one file writes: the file, the pages of directories above it, itself."""
_ROOM = 32 * 1024 * 1024


class Floor:
    """A file with room and a database with FULL syncs, beside the store they are compared with."""

    def __init__(self, place: Path) -> None:
        self._fd = os.open(place / "floor", os.O_RDWR | os.O_CREAT)
        os.write(self._fd, bytes(_ROOM))
        os.fsync(self._fd)
        self._db = apsw.Connection(str(place / "floor.db"))
        self._db.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE head (name TEXT PRIMARY KEY, oid BLOB) WITHOUT ROWID")
        self._at = 0

    def once(self) -> float:
        """Milliseconds for one write with fdatasync and one durable row."""
        data = os.urandom(BYTES)
        start = time.perf_counter()
        os.pwrite(self._fd, data, self._at)
        os.fdatasync(self._fd)
        self._db.execute("INSERT OR REPLACE INTO head VALUES ('main', ?)", (data[:32],))
        spent = time.perf_counter() - start
        self._at = (self._at + BYTES) % _ROOM
        return spent * 1000

    def close(self) -> None:
        self._db.close()
        os.close(self._fd)

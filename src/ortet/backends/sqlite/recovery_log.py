"""The recovery log of a catalog: a second copy of the rows that packs do not hold.

Commits, conversations and files are in packs. The names of branches and sessions are only rows. If
`catalog.db` is lost, `ortet repair` reads them here. Each line is a checksum and a record; the last
line of a key counts, and a damaged line is left out. The log is written after the commit, is not
synced, and is never read while the catalog is sound.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from ortet._util.codec import StoredRecord, checksum, decode, encode
from ortet.backends.base import Move, RowChange
from ortet.errors import OrtetError

HEAD = "head"
COPIED_KINDS = frozenset(
    {"session", "workspace", "archive", "scope", "tombstone", "erasure", "vault"}
)
"""Kinds of rows that are copied. All others are derived, or are rows of work in progress."""

_COMPACT_BYTES = 4 << 20
_APPEND_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class LoggedRow(StoredRecord, frozen=True):
    """A row or head as it was written. `value` is None if it was deleted."""

    kind: str
    key: str
    value: bytes | None


class RecoveryLog:
    """The log at a path. A failure to write is ignored: the log is a help."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, moves: Sequence[Move], rows: Sequence[RowChange]) -> None:
        """Append the new heads, and the changed rows of the kinds that are copied."""
        found = [LoggedRow(HEAD, move.name, move.to) for move in moves]
        found += [
            LoggedRow(row.kind, row.key, row.value) for row in rows if row.kind in COPIED_KINDS
        ]
        if found:
            with suppress(OSError):
                fd = os.open(self._path, _APPEND_FLAGS, 0o600)
                try:
                    os.write(fd, _lines(found))
                finally:
                    os.close(fd)

    def read(self) -> dict[tuple[str, str], bytes]:
        """Return the last value of every row and head that was not deleted."""
        found: dict[tuple[str, str], bytes | None] = {}
        with suppress(OSError), open(self._path, "rb") as file:
            for line in file:
                row = _parse(line)
                if row is not None:
                    found[row.kind, row.key] = row.value
        return {key: value for key, value in found.items() if value is not None}

    def compact(self, *, always: bool = False) -> None:
        """Drop lines that later ones replace, if the log is large or `always` is true."""
        with suppress(OSError):
            if self._path.stat().st_size > (0 if always else _COMPACT_BYTES):
                rows = [LoggedRow(kind, key, data) for (kind, key), data in self.read().items()]
                part = self._path.with_name(f"{self._path.name}.{os.getpid()}")
                part.write_bytes(_lines(rows))
                part.replace(self._path)


def _lines(rows: Iterable[LoggedRow]) -> bytes:
    bodies = [encode(row) for row in rows]
    return b"".join(b"%s\n" % b64encode(checksum(body) + body) for body in bodies)


def _parse(line: bytes) -> LoggedRow | None:
    try:
        data = b64decode(line.strip(), validate=True)
        return decode(LoggedRow, data[8:]) if data[:8] == checksum(data[8:]) else None
    except (ValueError, OrtetError):
        return None

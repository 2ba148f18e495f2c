"""Salvage: what can still be read of a damaged catalog goes into a new file.

Rows are read from both ends of each table, and of each timeline and kind of row, until a damaged
page stops the reader. With page checksums, only intact pages are read. The caller checks what the
rows say.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw

from ortet.backends.sqlite.connection import open_connection
from ortet.backends.sqlite.page_checksums import load_checksums
from ortet.backends.sqlite.recovery_log import COPIED_KINDS

_BUSY_MS = 1000
_TABLES = {
    "heads": ("name, oid, version, time", "name"),
    "ops": ("seq, time, verb, name, old, new, actor, detail", "seq"),
    "timelines": ("id, parent, at", "id"),
    "records": ("kind, key, value, version", "kind, key"),
    "events": ("timeline, seq, head, salt, body", "timeline, seq"),
}
"""Table -> its columns and its key. Leases are left out: they are of processes that have ended."""

_PARTS = {"records": "kind", "events": "timeline"}
"""Table -> the column by which it is also read in parts."""

_DAMAGE = (apsw.Error, UnicodeDecodeError)


def salvage_catalog(source: Path, target: Path) -> int:
    """Create a catalog at `target` with the readable rows of `source`. Return their number."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{target}{suffix}").unlink(missing_ok=True)
    new = open_connection(target, create=True, busy_ms=_BUSY_MS)
    count = 0
    try:
        new.execute("BEGIN IMMEDIATE")
        if source.exists():
            with suppress(*_DAMAGE):
                count = _copy_rows(source, new)
        # Versions and fences continue above all that anybody may remember.
        new.execute("UPDATE floors SET value = max(value, ?)", (time.time_ns() // 1_000_000,))
        new.execute("COMMIT")
    finally:
        new.close()
    return count


def _copy_rows(source: Path, new: apsw.Connection) -> int:
    load_checksums()
    old = apsw.Connection(str(source))
    count = 0
    try:
        old.set_busy_timeout(_BUSY_MS)
        for table, (columns, key) in _TABLES.items():
            insert = f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({_marks(columns)})"
            for row in _rows(old, table, columns, key):
                with suppress(apsw.ConstraintError):
                    new.execute(insert, row)
                    count += new.changes()
        with suppress(*_DAMAGE):
            for of, value in old.execute("SELECT of, value FROM floors"):
                new.execute("UPDATE floors SET value = max(value, ?) WHERE of = ?", (value, of))
    finally:
        old.close()
    return count


def _rows(old: apsw.Connection, table: str, columns: str, key: str) -> Iterator[tuple[Any, ...]]:
    yield from _both_ways(old, f"SELECT {columns} FROM {table}", key, ())
    part = _PARTS.get(table)
    if part is not None:
        for value in _part_values(old, table):
            select = f"SELECT {columns} FROM {table} WHERE {part} = ?"
            yield from _both_ways(old, select, key, (value,))


def _part_values(old: apsw.Connection, table: str) -> Iterable[Any]:
    if table == "records":
        return sorted(COPIED_KINDS)
    return [row[0] for row in _both_ways(old, "SELECT id FROM timelines", "id", ())]


def _both_ways(
    old: apsw.Connection, select: str, key: str, values: tuple[Any, ...]
) -> Iterator[tuple[Any, ...]]:
    """Yield rows in key order up to the first damaged page, then from the end down to one."""
    try:
        yield from old.execute(f"{select} ORDER BY {key}", values)
    except _DAMAGE:
        down = ", ".join(f"{column} DESC" for column in key.split(", "))
        with suppress(*_DAMAGE):
            yield from old.execute(f"{select} ORDER BY {down}", values)


def _marks(columns: str) -> str:
    return ", ".join("?" for _ in columns.split(", "))

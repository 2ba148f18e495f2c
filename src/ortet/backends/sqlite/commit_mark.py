"""The mark of a catalog: what the last committed transaction left there.

SQLite ignores the end of a damaged log, and a copy of an old file looks like any other. The catalog
then silently goes back to an earlier moment. The mark is a small file beside the catalog. After
each durable transaction, the writer notes one thing that the transaction stored, and that no later
transaction takes back: an event, a line of the operation log, the version of a row, or the fence of
a lease. A log loses its end, never its middle, so one thing of the last transaction is enough.

The mark is written after the commit and is not synced. After a power cut it may be older than the
catalog, or unreadable. Both only mean that less is known. It is never newer than the catalog.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary

import apsw

from ortet._util.codec import StoredRecord, checksum, decode, encode
from ortet.backends.base import Append, Lease, Move, RowChange
from ortet.backends.row_codec import raw_id
from ortet.errors import Corrupt, OrtetError

EVENT, OP, ROW, DROP, FENCE, NOTHING = "event", "op", "row", "drop", "fence", ""

_SIZE_BYTES = 4
_SUM_BYTES = 8
_MAX_BYTES = 64 * 1024

_HAS_EVENT = "SELECT head FROM events WHERE timeline = ? AND seq = ?"
_LAST_EVENT = "SELECT max(seq) FROM events WHERE timeline = ?"
_LAST_OP = "SELECT coalesce(max(seq), 0) FROM ops"
_ROW_VERSION = "SELECT version FROM records WHERE kind = ? AND key = ?"
_LEASE_FENCE = "SELECT fence FROM leases WHERE name = ?"
_FLOOR = "SELECT value FROM floors WHERE of = ?"


class Evidence(StoredRecord, frozen=True):
    """One thing that a transaction stored.

    `number` is the seq of an event or operation, the version of a row, or a fence. `name` is the
    timeline, the key of the row or the name of the lease. `digest` is a checksum of the event.
    """

    kind: str
    name: str = ""
    number: int = 0
    row_kind: str = ""
    digest: bytes = b""


class CommitMark:
    """The mark of one catalog file. All connections of a process share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def note(self, evidence: Evidence) -> None:
        """Note what the last transaction stored. A failure is ignored: the mark is a help."""
        body = encode(evidence)
        data = len(body).to_bytes(_SIZE_BYTES, "little") + checksum(body) + body
        with suppress(OSError):
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._fd, data, 0)

    def read(self) -> Evidence | None:
        """Return the noted evidence, or None if there is none or it cannot be read."""
        try:
            data = self._path.read_bytes()[:_MAX_BYTES]
        except OSError:
            return None
        start = _SIZE_BYTES + _SUM_BYTES
        body = data[start : start + int.from_bytes(data[:_SIZE_BYTES], "little")]
        if data[_SIZE_BYTES:start] != checksum(body):
            return None
        try:
            return decode(Evidence, body)
        except OrtetError:
            return None

    def forget(self) -> None:
        """Delete the mark: what the catalog holds now is accepted."""
        with suppress(OSError):
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            self._path.unlink()


_MARKS: WeakValueDictionary[str, CommitMark] = WeakValueDictionary()
_MARKS_LOCK = Lock()


def _reset_in_child() -> None:
    global _MARKS_LOCK
    _MARKS_LOCK = Lock()  # a thread that does not exist here may have held it


os.register_at_fork(after_in_child=_reset_in_child)


def commit_mark_for(path: Path) -> CommitMark:
    """Return the mark at a path, shared by all catalogs of this process that use it."""
    key = os.path.realpath(path)
    with _MARKS_LOCK:
        found = _MARKS.get(key)
        if found is None:
            found = _MARKS[key] = CommitMark(path)
        return found


def event_evidence(timeline: str, seq: int, head: bytes) -> Evidence:
    """Return the evidence of an appended event."""
    return Evidence(EVENT, timeline, seq, digest=checksum(head))


def move_evidence(
    db: apsw.Connection,
    moves: Sequence[Move],
    appends: Sequence[Append],
    rows: Sequence[RowChange],
    leases: Sequence[Lease],
) -> Evidence | None:
    """Return one thing that a transaction of `move` stored, read inside the transaction."""
    if moves:
        return Evidence(OP, number=int(db.execute(_LAST_OP).get))
    for append in appends:
        if append.events:
            last = append.events[-1]
            return event_evidence(append.timeline, last.seq, last.head)
    for lease in leases:
        return Evidence(FENCE, lease.name, lease.fence)
    return row_evidence(db, rows)


def row_evidence(db: apsw.Connection, rows: Sequence[RowChange]) -> Evidence | None:
    """Return the version of the last row that a transaction wrote."""
    for change in reversed(rows):
        if change.value is not None:
            version = db.execute(_ROW_VERSION, (change.kind, change.key)).get
            return Evidence(ROW, change.key, int(version), change.kind)
    return Evidence(DROP, number=int(db.execute(_FLOOR, ("row",)).get)) if rows else None


def check_evidence(db: apsw.Connection, evidence: Evidence, path: Path) -> None:
    """Raise Corrupt("catalog_behind") if the catalog lacks what its last transaction stored."""
    if not _holds(db, evidence):
        raise Corrupt(
            "catalog_behind",
            f"{path} has lost acknowledged work: it or its log was damaged or replaced by an older "
            "copy; restore both from a backup, or run `ortet repair` to see what is left",
        )


def _holds(db: apsw.Connection, evidence: Evidence) -> bool:
    if evidence.kind == EVENT:
        return _holds_event(db, evidence)
    if evidence.kind == OP:
        return int(db.execute(_LAST_OP).get) >= evidence.number
    if evidence.kind == ROW:
        version = db.execute(_ROW_VERSION, (evidence.row_kind, evidence.name)).get
        found = version if version is not None else db.execute(_FLOOR, ("row",)).get
        return int(found or 0) >= evidence.number
    if evidence.kind == DROP:
        return int(db.execute(_FLOOR, ("row",)).get or 0) >= evidence.number
    if evidence.kind == FENCE:
        fence = db.execute(_LEASE_FENCE, (evidence.name,)).get
        floor = db.execute(_FLOOR, ("fence",)).get
        return max(int(fence or 0), int(floor or 0)) >= evidence.number
    return True


def _holds_event(db: apsw.Connection, evidence: Evidence) -> bool:
    raw = raw_id(evidence.name)
    head = db.execute(_HAS_EVENT, (raw, evidence.number)).get
    if head is not None:
        return checksum(head) == evidence.digest
    # a trim deletes old rows and keeps the last
    return int(db.execute(_LAST_EVENT, (raw,)).get or 0) > evidence.number

"""The timeline and event part of the SQLite catalog."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import apsw
import msgspec

from ortet.backends import errors
from ortet.backends.base import EventRow, Lease, RowChange, Timeline, Timelines
from ortet.backends.keys import check_limit
from ortet.backends.row_codec import (
    MAX_BODY_BYTES,
    BodyCompressor,
    CachingCompressor,
    compress_body,
    decompress_body,
    raw_id,
)
from ortet.backends.sqlite.connection import SqliteHandle
from ortet.backends.sqlite.rows import change_rows, check_lease, fetch_all
from ortet.backends.sqlite.write_queue import Insert
from ortet.ids import Clock

_BEGIN = "BEGIN IMMEDIATE"
_COMMIT = "COMMIT"
_TIMELINE = "SELECT lower(hex(id)), lower(hex(parent)), at FROM timelines WHERE id = ?"
_CHILDREN = """SELECT lower(hex(id)), lower(hex(parent)), at FROM timelines
    WHERE parent = ? AND id > ? ORDER BY id LIMIT ?"""
_ADD_TIMELINE = "INSERT INTO timelines (id, parent, at) VALUES (?, ?, ?)"
_LAST = """SELECT coalesce((SELECT max(seq) FROM events WHERE timeline = ?1), at)
    FROM timelines WHERE id = ?1"""
_HAS = "SELECT 1 FROM events WHERE timeline = ? AND seq = ?"
_ADD = "INSERT INTO events (timeline, seq, head, salt, body) VALUES (?, ?, ?, ?, ?)"
# One statement is one transaction. It takes a third of the time of BEGIN, two SELECTs and COMMIT.
# If a condition fails, seq is NULL and nothing is inserted. Sequence numbers have no gaps. So if
# the previous event exists and this one does not, this one is the next. (A SELECT with the same
# conditions is twice as slow, because SQLite materialises it.)
_ADD_IF = """INSERT OR IGNORE INTO events (timeline, seq, head, salt, body) VALUES (?1, CASE WHEN
    (SELECT 1 FROM events WHERE timeline = ?1 AND seq = ?2 - 1){} THEN ?2 END, ?3, ?4, ?5)"""
_IF_LEASE_HELD = """ AND
    (SELECT owner = ?7 AND fence = ?8 AND expires > ?9 FROM leases WHERE name = ?6)"""
_ADD_ONE, _ADD_ONE_HELD = _ADD_IF.format(""), _ADD_IF.format(_IF_LEASE_HELD)
# Inserts several events if the first one is the next. Takes half the time of a transaction.
_ADD_SEVERAL = """INSERT OR IGNORE INTO events (timeline, seq, head, salt, body)
    SELECT ?1, ?2 + column1, column2, column3, column4 FROM (VALUES {}) WHERE
    (SELECT 1 FROM events WHERE timeline = ?1 AND seq = ?2 - 1) AND
    NOT EXISTS (SELECT 1 FROM events WHERE timeline = ?1 AND seq = ?2)"""
_IF_LEASE_HELD_SEVERAL = """ AND
    (SELECT owner = ?4 AND fence = ?5 AND expires > ?6 FROM leases WHERE name = ?3)"""
_MAX_EVENTS_PER_INSERT = 16
"""The maximum number of events in one INSERT statement."""
_EVENTS = """SELECT seq, head, coalesce(salt, x''), coalesce(body, x'') FROM events
    WHERE timeline = ? AND seq > ? ORDER BY seq LIMIT ?"""
_NEWEST = """SELECT seq, head, coalesce(salt, x''), coalesce(body, x'') FROM events
    WHERE timeline = ? AND seq > ? ORDER BY seq DESC LIMIT ?"""
_EVENTS_BY_SEQ = """SELECT seq, head, coalesce(salt, x''), coalesce(body, x'') FROM events
    WHERE timeline = ? AND seq IN (SELECT value FROM json_each(?)) ORDER BY seq"""
# One statement for thousands of timelines takes an eighth of the time of one statement each.
_LAST_HEADS = """SELECT (SELECT head FROM events WHERE timeline = unhex(value)
    ORDER BY seq DESC LIMIT 1) FROM json_each(?)"""
_TRIM = """DELETE FROM events WHERE timeline = ?1 AND seq <= ?2
    AND seq < (SELECT max(seq) FROM events WHERE timeline = ?1)"""
_ERASE = """UPDATE events SET salt = NULL, body = NULL
    WHERE timeline = ? AND seq = ? AND body IS NOT NULL"""
_HAS_CHILDREN = "SELECT EXISTS (SELECT 1 FROM timelines WHERE parent = ?)"


class SqliteTimelines(Timelines):
    """The timelines and events of a SQLite catalog. `SqliteCatalog` passes its handle."""

    def __init__(self, handle: SqliteHandle, clock: Clock, zstd: CachingCompressor) -> None:
        self._handle = handle
        self._clock = clock
        self._zstd = zstd  # used to compress only while the handle is held

    def timeline(self, id_: str) -> Timeline | None:
        with self._handle as db:
            found = fetch_all(db, _TIMELINE, (raw_id(id_),))
        return Timeline(*found[0]) if found else None

    def timelines(self, ids: Sequence[str]) -> list[Timeline]:
        found = (self.timeline(id_) for id_ in ids)
        return [one for one in found if one is not None]

    def children(self, id_: str, after: str = "", limit: int = 1000) -> list[Timeline]:
        with self._handle as db:
            values = (raw_id(id_), raw_id(after) if after else b"", check_limit(limit))
            return [Timeline(*row) for row in fetch_all(db, _CHILDREN, values)]

    def append(
        self,
        timeline: str,
        events: Sequence[EventRow],
        *,
        lease: Lease | None = None,
        rows: Sequence[RowChange] = (),
    ) -> None:
        if len(events) == 1 and not rows and self._add_one(timeline, events[0], lease):
            return
        if (
            1 < len(events) <= _MAX_EVENTS_PER_INSERT
            and not rows
            and self._add_few(timeline, events, lease)
        ):
            return
        with self._handle.writing() as db:
            db.execute(_BEGIN)
            if lease is not None:
                check_lease(db, lease, self._clock.now_ns())
            add_events(db, timeline, events, self._zstd)
            change_rows(db, rows)
            db.execute(_COMMIT)

    def _add_one(self, timeline: str, event: EventRow, lease: Lease | None) -> bool:
        """Append one event in one statement. Return False, without effect, if a condition fails.

        The caller then uses a transaction, which raises the exact error.
        """

        def make() -> Insert:
            body = compress_body(event.body, self._zstd)
            values = (raw_id(timeline), event.seq, event.head, event.salt, body)

            def add(db: apsw.Connection) -> bool:
                if lease is None:
                    db.execute(_ADD_ONE, values)
                else:
                    held = (lease.name, lease.owner, lease.fence, self._clock.now_ns())
                    db.execute(_ADD_ONE_HELD, values + held)
                return db.changes() == 1

            return add

        return self._handle.insert_batched(make)

    def _add_few(self, timeline: str, events: Sequence[EventRow], lease: Lease | None) -> bool:
        """Append several events in one statement, all or none, like `_add_one`."""
        first, count = events[0].seq, len(events)
        if [event.seq for event in events] != list(range(first, first + count)):
            return False
        raw, statement = raw_id(timeline), _insert_several_sql(count, lease is not None)

        def make() -> Insert:
            values: list[str | int | bytes] = []
            for event in events:
                values += (event.head, event.salt, compress_body(event.body, self._zstd))

            def add(db: apsw.Connection) -> bool:
                held: tuple[str, str, int, int] = ("", "", 0, 0)
                if lease is not None:
                    held = (lease.name, lease.owner, lease.fence, self._clock.now_ns())
                db.execute(statement, (raw, first, *held, *values))
                return db.changes() == count

            return add

        return self._handle.insert_batched(make)

    def events(
        self, timeline: str, after: int = 0, limit: int = 1000, *, newest: bool = False
    ) -> list[EventRow]:
        values = (raw_id(timeline), after, min(check_limit(limit), MAX_BODY_BYTES))
        with self._handle as db:
            found = fetch_all(db, _NEWEST if newest else _EVENTS, values)
        if newest:
            found.reverse()
        zstd = self._zstd
        return [
            EventRow(seq, head, salt, decompress_body(body, zstd))
            for seq, head, salt, body in found
        ]

    def events_by_seq(self, timeline: str, seqs: Sequence[int]) -> list[EventRow]:
        asked = msgspec.json.encode(list(seqs)).decode()
        with self._handle as db:
            found = fetch_all(db, _EVENTS_BY_SEQ, (raw_id(timeline), asked))
        zstd = self._zstd
        return [
            EventRow(seq, head, salt, decompress_body(body, zstd))
            for seq, head, salt, body in found
        ]

    def last_seq(self, timeline: str) -> int:
        with self._handle as db:
            return _last_seq(db, timeline)

    def last_heads(self, timelines: Sequence[str]) -> list[bytes]:
        ids = msgspec.json.encode([raw_id(one).hex() for one in timelines]).decode()
        with self._handle as db:
            return [head or b"" for (head,) in fetch_all(db, _LAST_HEADS, (ids,))]

    def trim_events(self, timeline: str, upto: int) -> int:
        with self._handle.writing() as db:
            db.execute(_TRIM, (raw_id(timeline), upto))
            return db.changes()

    def erase_events(self, timeline: str, seqs: Sequence[int]) -> int:
        with self._handle.writing() as db:
            self._zstd.clear_cache()
            db.execute("PRAGMA secure_delete = ON")  # overwrite freed space with zeros
            db.execute(_BEGIN)
            raw, count = raw_id(timeline), 0
            for seq in seqs:
                db.execute(_ERASE, (raw, seq))
                count += db.changes()
            db.execute(_COMMIT)
            # the write-ahead log still has the old pages
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return count

    def drop_timeline(self, timeline: str) -> None:
        with self._handle.writing() as db:
            raw = raw_id(timeline)
            db.execute(_BEGIN)
            if db.execute(_HAS_CHILDREN, (raw,)).get:
                raise errors.has_children(timeline)
            db.execute("DELETE FROM events WHERE timeline = ?", (raw,))
            db.execute("DELETE FROM timelines WHERE id = ?", (raw,))
            db.execute(_COMMIT)


def add_timelines(db: apsw.Connection, timelines: Sequence[Timeline]) -> None:
    """Insert new timelines and check their fork points, inside a transaction."""
    found: set[tuple[str, int]] = set()
    for line in timelines:
        if line.parent and (line.parent, line.at) not in found:
            _check_fork_point(db, line.parent, line.at)
            found.add((line.parent, line.at))
        raw = raw_id(line.id)
        try:
            db.execute(_ADD_TIMELINE, (raw, raw_id(line.parent) if line.parent else None, line.at))
        except apsw.ConstraintError:
            raise errors.timeline_exists(line.id) from None


def _check_fork_point(db: apsw.Connection, timeline: str, at: int) -> None:
    """Raise Invalid unless a timeline can fork at event `at`. Usually that event has a row."""
    if not fetch_all(db, _HAS, (raw_id(timeline), at)) and not 0 <= at <= _last_seq(db, timeline):
        raise errors.bad_fork(timeline, at)


def add_events(
    db: apsw.Connection, timeline: str, events: Sequence[EventRow], zstd: BodyCompressor
) -> None:
    """Append events inside a transaction. The first one must be the next of its timeline."""
    last = _last_seq(db, timeline)
    if [event.seq for event in events] != list(range(last + 1, last + 1 + len(events))):
        raise errors.seq_taken(timeline, events[0].seq, last)
    raw = raw_id(timeline)
    db.executemany(
        _ADD, ((raw, e.seq, e.head, e.salt, compress_body(e.body, zstd)) for e in events)
    )


@cache
def _insert_several_sql(count: int, is_leased: bool) -> str:
    at = range(7, 7 + 3 * count, 3)
    rows = ", ".join(f"({n}, ?{i}, ?{i + 1}, ?{i + 2})" for n, i in enumerate(at))
    return _ADD_SEVERAL.format(rows) + (_IF_LEASE_HELD_SEVERAL if is_leased else "")


def _last_seq(db: apsw.Connection, timeline: str) -> int:
    found = fetch_all(db, _LAST, (raw_id(timeline),))
    if not found:
        raise errors.no_timeline(timeline)
    return int(found[0][0])

"""The Catalog in one SQLite file, for many threads and processes of one host.

Every commit is synced to disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw

from ortet.backends import errors
from ortet.backends.base import (
    Append,
    Catalog,
    CatalogRow,
    EventRow,
    Head,
    Lease,
    LeaseClaim,
    Move,
    Op,
    RowChange,
    Timeline,
)
from ortet.backends.keys import check_limit, check_name
from ortet.backends.row_codec import CachingCompressor
from ortet.backends.sqlite.connection import SqliteHandle, read_format_version
from ortet.backends.sqlite.events import SqliteTimelines, add_events, add_timelines
from ortet.backends.sqlite.rows import (
    RAISE_FLOOR,
    change_rows,
    check_lease,
    check_row_version,
    claim_lease,
    drop_row,
    expiry,
    fetch_all,
    find_lease,
    find_row,
    put_row,
)
from ortet.errors import Invalid
from ortet.ids import OID_BYTES, Clock, Oid, SystemClock

# Statements are constants, so that apsw finds them in its statement cache. Every write starts with
# BEGIN IMMEDIATE: SQLite refuses, without waiting, a transaction that reads first and then writes.
_BEGIN = "BEGIN IMMEDIATE"
_COMMIT = "COMMIT"
_HEAD = "SELECT name, oid, version, time FROM heads WHERE name = ?"
_HEADS = """SELECT name, oid, version, time FROM heads
    WHERE name >= ? AND name <> ? AND name <= ? || char(1114111) ORDER BY name LIMIT ?"""
_CREATE = """INSERT INTO heads (name, oid, version, time)
    VALUES (?, ?, (SELECT value + 1 FROM floors WHERE of = 'head'), ?) ON CONFLICT DO NOTHING"""
_UPDATE = "UPDATE heads SET oid = ?, version = version + 1, time = ? WHERE name = ? AND oid = ?"
_DELETE = "DELETE FROM heads WHERE name = ? AND oid = ? RETURNING version"
_LOG = "INSERT INTO ops (time, verb, name, old, new, actor, detail) VALUES (?, ?, ?, ?, ?, ?, ?)"
_OPS = """SELECT seq, time, verb, name, old, new, actor, detail FROM ops
    WHERE seq > ? ORDER BY seq LIMIT ?"""
_OPS_OF = """SELECT seq, time, verb, name, old, new, actor, detail FROM ops
    WHERE name = ? AND seq > ? ORDER BY seq LIMIT ?"""
_TRIM = """DELETE FROM ops WHERE time < ? AND seq < (SELECT max(seq) FROM ops) AND NOT EXISTS (
    SELECT 1 FROM heads WHERE heads.name = ops.name
        AND ops.seq = (SELECT max(o.seq) FROM ops AS o WHERE o.name = ops.name))"""
_EXTEND = "UPDATE leases SET expires = ? WHERE name = ? AND owner = ? AND fence = ?"
_END = "DELETE FROM leases WHERE name = ? AND owner = ? AND fence = ?"
_ROWS = (
    "SELECT kind, key, value, version FROM records WHERE kind = ? AND key > ? ORDER BY key LIMIT ?"
)

_VACUUM_FREE_FRACTION = 4
"""The file is rewritten (VACUUM) if at least one in this many pages is free."""


class SqliteCatalog(Catalog):
    """The catalog of an embedded store.

    With `create=False`, a missing or empty file raises Corrupt("no_catalog"). A transaction waits
    up to `busy_ms` for other processes, then raises Unavailable("busy"). Safe across os.fork:
    parent and child reopen the file at their next call.
    """

    def __init__(
        self, path: Path, clock: Clock | None = None, *, create: bool = True, busy_ms: int = 30_000
    ) -> None:
        self._clock = clock or SystemClock()
        self._zstd = CachingCompressor()
        self._path = path
        self._handle = SqliteHandle(path, create=create, busy_ms=busy_ms)
        self._timelines = SqliteTimelines(self._handle, self._clock, self._zstd)

    # heads

    def head(self, name: str) -> Head | None:
        with self._handle as db:
            found = fetch_all(db, _HEAD, (check_name(name),))
        return Head(*found[0]) if found else None

    def heads(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[Head]:
        start = max(prefix, after)  # one bound, so that a later page does not read the earlier ones
        with self._handle as db:
            found = fetch_all(db, _HEADS, (start, after, prefix, check_limit(limit)))
        return [Head(*row) for row in found]

    def move(
        self,
        moves: Sequence[Move],
        *,
        verb: str,
        actor: str = "",
        detail: str = "",
        lease: Lease | None = None,
        rows: Sequence[RowChange] = (),
        timelines: Sequence[Timeline] = (),
        appends: Sequence[Append] = (),
        claims: Sequence[LeaseClaim] = (),
    ) -> list[Lease]:
        with self._handle.writing() as db:
            db.execute(_BEGIN)
            # read after the lock is held, so that the log is in time order
            now = self._clock.now_ns()
            if lease is not None:
                check_lease(db, lease, now)
            leases = [claim_lease(db, claim, now) for claim in claims]
            add_timelines(db, timelines)
            for append in appends:
                add_events(db, append.timeline, append.events, self._zstd)
            for move in moves:
                _move(db, move, now)
                db.execute(_LOG, (now, verb, move.name, move.expect, move.to, actor, detail))
            change_rows(db, rows)
            db.execute(_COMMIT)
        return leases

    # operation log

    def ops(self, name: str | None = None, after: int = 0, limit: int = 1000) -> list[Op]:
        check_limit(limit)
        with self._handle as db:
            if name is None:
                return [Op(*row) for row in fetch_all(db, _OPS, (after, limit))]
            return [Op(*row) for row in fetch_all(db, _OPS_OF, (check_name(name), after, limit))]

    def last_op(self) -> int:
        with self._handle as db:
            return int(db.execute("SELECT coalesce(max(seq), 0) FROM ops").get)

    def trim_ops(self, before_time: int) -> int:
        with self._handle.writing() as db:
            db.execute(_TRIM, (before_time,))
            return db.changes()

    # leases

    def acquire(self, name: str, owner: str, ttl_ns: int) -> Lease:
        with self._handle.writing() as db:
            db.execute(_BEGIN)
            lease = claim_lease(db, LeaseClaim(name, owner, ttl_ns), self._clock.now_ns())
            db.execute(_COMMIT)
        return lease

    def extend(self, lease: Lease, ttl_ns: int) -> Lease:
        with self._handle.writing() as db:
            db.execute(_BEGIN)
            expires = expiry(self._clock.now_ns(), ttl_ns)
            db.execute(_EXTEND, (expires, lease.name, lease.owner, lease.fence))
            if not db.changes():
                raise errors.lease_lost(lease)
            db.execute(_COMMIT)
        return Lease(lease.name, lease.owner, lease.fence, expires)

    def release(self, lease: Lease) -> None:
        with self._handle.writing() as db:
            db.execute(_BEGIN)
            db.execute(_END, (lease.name, lease.owner, lease.fence))
            if db.changes():
                db.execute(RAISE_FLOOR, ("fence", lease.fence))
            db.execute(_COMMIT)

    def seize(self, lease: Lease) -> None:
        self.release(lease)  # same effect; the two names separate who may call them

    def lease(self, name: str) -> Lease | None:
        with self._handle as db:
            return find_lease(db, check_name(name))

    # records

    def row(self, kind: str, key: str) -> CatalogRow | None:
        with self._handle as db:
            return find_row(db, check_name(kind), check_name(key))

    def rows(self, kind: str, after: str = "", limit: int = 1000) -> list[CatalogRow]:
        with self._handle as db:
            found = fetch_all(db, _ROWS, (check_name(kind), after, check_limit(limit)))
        return [CatalogRow(*row) for row in found]

    def put_row(self, kind: str, key: str, value: bytes, expect: int | None = None) -> CatalogRow:
        with self._handle.writing() as db:
            db.execute(_BEGIN)
            check_row_version(db, kind, key, expect)
            row = CatalogRow(kind, key, value, put_row(db, kind, key, value))
            db.execute(_COMMIT)
        return row

    def drop_row(self, kind: str, key: str) -> None:
        with self._handle.writing() as db:
            db.execute(_BEGIN)
            drop_row(db, kind, key)
            db.execute(_COMMIT)

    # timelines

    def timeline(self, id_: str) -> Timeline | None:
        return self._timelines.timeline(id_)

    def timelines(self, ids: Sequence[str]) -> list[Timeline]:
        return self._timelines.timelines(ids)

    def children(self, id_: str, after: str = "", limit: int = 1000) -> list[Timeline]:
        return self._timelines.children(id_, after, limit)

    def append(
        self,
        timeline: str,
        events: Sequence[EventRow],
        *,
        lease: Lease | None = None,
        rows: Sequence[RowChange] = (),
    ) -> None:
        self._timelines.append(timeline, events, lease=lease, rows=rows)

    def events(
        self, timeline: str, after: int = 0, limit: int = 1000, *, newest: bool = False
    ) -> list[EventRow]:
        return self._timelines.events(timeline, after, limit, newest=newest)

    def events_by_seq(self, timeline: str, seqs: Sequence[int]) -> list[EventRow]:
        return self._timelines.events_by_seq(timeline, seqs)

    def last_seq(self, timeline: str) -> int:
        return self._timelines.last_seq(timeline)

    def last_heads(self, timelines: Sequence[str]) -> list[bytes]:
        return self._timelines.last_heads(timelines)

    def trim_events(self, timeline: str, upto: int) -> int:
        return self._timelines.trim_events(timeline, upto)

    def erase_events(self, timeline: str, seqs: Sequence[int]) -> int:
        return self._timelines.erase_events(timeline, seqs)

    def drop_timeline(self, timeline: str) -> None:
        self._timelines.drop_timeline(timeline)

    # maintenance

    def scrub(self) -> None:
        with self._handle as db:
            db.execute("VACUUM")  # a freed or split page keeps its old contents
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def reclaim(self) -> None:
        with self._handle as db:
            pages = db.execute("PRAGMA page_count").get
            free = db.execute("PRAGMA freelist_count").get
        if free * _VACUUM_FREE_FRACTION >= pages:  # otherwise new rows will use the free pages
            self.scrub()

    def check_format(self) -> None:
        with self._handle as db:
            read_format_version(db, self._path)

    def check(self) -> list[str]:
        with self._handle as db:
            try:
                found = [text for (text,) in db.execute("PRAGMA integrity_check") if text != "ok"]
                return found or _find_inconsistencies(db)
            except apsw.CorruptError as error:
                return [str(error)]

    def close(self) -> None:
        self._handle.close()


def _move(db: apsw.Connection, move: Move, now: int) -> None:
    name, expect, to = check_name(move.name), move.expect, move.to
    if expect is None and to is None:
        raise Invalid(
            "empty_move", f"a move of {name} from nothing to nothing: say where it should go"
        )
    if to is None:
        for (version,) in fetch_all(db, _DELETE, (name, expect)):
            db.execute(RAISE_FLOOR, ("head", version))
            return
    else:
        if expect is None:
            db.execute(_CREATE, (name, to, now))
        else:
            db.execute(_UPDATE, (to, now, name, expect))
        if db.changes():
            return
    found: Oid | None = db.execute("SELECT oid FROM heads WHERE name = ?", (name,)).get
    raise errors.head_moved(name, expect, found)


def _find_inconsistencies(db: apsw.Connection) -> list[str]:
    """Check what SQLite cannot: the length of ids, and that each head agrees with the log."""
    bad = db.execute("SELECT name FROM heads WHERE length(oid) <> ? ORDER BY name", (OID_BYTES,))
    strange = db.execute(
        """SELECT heads.name FROM heads JOIN ops
        ON ops.seq = (SELECT max(o.seq) FROM ops AS o WHERE o.name = heads.name)
        WHERE ops.new IS NOT heads.oid ORDER BY heads.name"""
    )
    return [f"head {name} does not hold an object id" for (name,) in bad] + [
        f"head {name} is not where its last operation put it" for (name,) in strange
    ]

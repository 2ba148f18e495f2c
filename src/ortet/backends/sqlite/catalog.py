"""The Catalog in one SQLite file, for many threads and processes of one host.

Every commit is synced to disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import apsw
import msgspec

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
from ortet.backends.row_codec import (
    MAX_BODY_BYTES,
    BodyCompressor,
    CachingCompressor,
    compress_body,
    decompress_body,
    raw_id,
)
from ortet.backends.sqlite.commit_mark import (
    FENCE,
    NOTHING,
    ROW,
    Evidence,
    check_evidence,
    commit_mark_for,
    event_evidence,
    move_evidence,
    row_evidence,
)
from ortet.backends.sqlite.connection import SqliteHandle, read_format_version
from ortet.backends.sqlite.page_checksums import is_page_damaged
from ortet.backends.sqlite.recovery_log import RecoveryLog
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
from ortet.backends.sqlite.write_queue import Insert
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
_TRIM_OPS = """DELETE FROM ops WHERE time < ? AND seq < (SELECT max(seq) FROM ops) AND NOT EXISTS (
    SELECT 1 FROM heads WHERE heads.name = ops.name
        AND ops.seq = (SELECT max(o.seq) FROM ops AS o WHERE o.name = ops.name))"""
_EXTEND = "UPDATE leases SET expires = ? WHERE name = ? AND owner = ? AND fence = ?"
_END = "DELETE FROM leases WHERE name = ? AND owner = ? AND fence = ?"
_ROWS = (
    "SELECT kind, key, value, version FROM records WHERE kind = ? AND key > ? ORDER BY key LIMIT ?"
)

_TIMELINE = "SELECT lower(hex(id)), lower(hex(parent)), at FROM timelines WHERE id = ?"
_CHILDREN = """SELECT lower(hex(id)), lower(hex(parent)), at FROM timelines
    WHERE parent = ? AND id > ? ORDER BY id LIMIT ?"""
_ADD_TIMELINE = "INSERT INTO timelines (id, parent, at) VALUES (?, ?, ?)"
_LAST_SEQ = """SELECT coalesce((SELECT max(seq) FROM events WHERE timeline = ?1), at)
    FROM timelines WHERE id = ?1"""
_HAS_EVENT = "SELECT 1 FROM events WHERE timeline = ? AND seq = ?"
_ADD_EVENT = "INSERT INTO events (timeline, seq, head, salt, body) VALUES (?, ?, ?, ?, ?)"
# One statement is one transaction. It takes a third of the time of BEGIN, two SELECTs and COMMIT.
# If a condition fails, seq is NULL and nothing is inserted. Sequence numbers have no gaps. So if
# the previous event exists and this one does not, this one is the next. (A SELECT with the same
# conditions is twice as slow, because SQLite materialises it.)
_ADD_IF = """INSERT OR IGNORE INTO events (timeline, seq, head, salt, body) VALUES (?1, CASE WHEN
    (SELECT 1 FROM events WHERE timeline = ?1 AND seq = ?2 - 1){} THEN ?2 END, ?3, ?4, ?5)"""
_IF_LEASE_HELD = """ AND
    (SELECT owner = ?7 AND fence = ?8 AND expires > ?9 FROM leases WHERE name = ?6)"""
_ADD_ONE_EVENT, _ADD_ONE_EVENT_HELD = _ADD_IF.format(""), _ADD_IF.format(_IF_LEASE_HELD)
# Inserts several events if the first one is the next. Takes half the time of a transaction.
_ADD_SEVERAL_EVENTS = """INSERT OR IGNORE INTO events (timeline, seq, head, salt, body)
    SELECT ?1, ?2 + column1, column2, column3, column4 FROM (VALUES {}) WHERE
    (SELECT 1 FROM events WHERE timeline = ?1 AND seq = ?2 - 1) AND
    NOT EXISTS (SELECT 1 FROM events WHERE timeline = ?1 AND seq = ?2)"""
_IF_LEASE_HELD_SEVERAL = """ AND
    (SELECT owner = ?4 AND fence = ?5 AND expires > ?6 FROM leases WHERE name = ?3)"""
_MAX_EVENTS_PER_INSERT = 16
"""The maximum number of events in one INSERT statement."""
_EVENTS = """SELECT seq, head, coalesce(salt, x''), coalesce(body, x'') FROM events
    WHERE timeline = ? AND seq > ? ORDER BY seq LIMIT ?"""
_NEWEST_EVENTS = """SELECT seq, head, coalesce(salt, x''), coalesce(body, x'') FROM events
    WHERE timeline = ? AND seq > ? ORDER BY seq DESC LIMIT ?"""
_EVENTS_BY_SEQ = """SELECT seq, head, coalesce(salt, x''), coalesce(body, x'') FROM events
    WHERE timeline = ? AND seq IN (SELECT value FROM json_each(?)) ORDER BY seq"""
# One statement for thousands of timelines takes an eighth of the time of one statement each.
_LAST_HEADS = """SELECT (SELECT head FROM events WHERE timeline = unhex(value)
    ORDER BY seq DESC LIMIT 1) FROM json_each(?)"""
_TRIM_EVENTS = """DELETE FROM events WHERE timeline = ?1 AND seq <= ?2
    AND seq < (SELECT max(seq) FROM events WHERE timeline = ?1)"""
_ERASE_EVENT = """UPDATE events SET salt = NULL, body = NULL
    WHERE timeline = ? AND seq = ? AND body IS NOT NULL"""
_HAS_CHILDREN = "SELECT EXISTS (SELECT 1 FROM timelines WHERE parent = ?)"

_DROP_LEASES = """UPDATE floors
    SET value = max(value, coalesce((SELECT max(fence) FROM leases), 0)) WHERE of = 'fence';
    DELETE FROM leases"""

_VACUUM_FREE_FRACTION = 4
"""The file is rewritten (VACUUM) if at least one in this many pages is free."""


class SqliteCatalog(Catalog):
    """The catalog of an embedded store.

    With `create=False`, a missing or empty file raises Corrupt("no_catalog"). A transaction waits
    up to `busy_ms` for other processes, then raises Unavailable("busy"). Safe across os.fork:
    parent and child reopen the file at their next call.

    `mark` is the path of the commit mark; see `commit_mark`. A catalog that lacks what the mark
    names raises Corrupt("catalog_behind"). `log` is the path of the recovery log.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock | None = None,
        *,
        create: bool = True,
        busy_ms: int = 30_000,
        mark: Path | None = None,
        log: Path | None = None,
    ) -> None:
        self._mark = None if mark is None else commit_mark_for(mark)
        if self._mark is not None and create:
            self._mark.forget()
        self._log = None if log is None else RecoveryLog(log)
        if self._log is not None:
            self._log.compact()
        self._clock = clock or SystemClock()
        self._zstd = CachingCompressor()  # used to compress only while the handle is held
        self._path = path
        self._busy_ms = busy_ms
        self._handle = SqliteHandle(path, create=create, busy_ms=busy_ms)
        if self._mark is not None and not create:
            self._check_mark(self._mark.read())

    def _check_mark(self, evidence: Evidence | None) -> None:
        if evidence is not None:
            try:
                with self._handle as db:
                    check_evidence(db, evidence, self._path)
            except BaseException:
                self._handle.close()
                raise

    def _note(self, evidence: Evidence | None) -> None:
        """Note what a transaction stored, after its commit."""
        if self._mark is not None and evidence is not None:
            self._mark.note(evidence)

    def _log_changes(self, moves: Sequence[Move], rows: Sequence[RowChange]) -> None:
        """Copy changed heads and rows to the recovery log, after their commit."""
        if self._log is not None and (moves or rows):
            self._log.note(moves, rows)

    # heads

    def head(self, name: str) -> Head | None:
        with self._handle as db:
            records = fetch_all(db, _HEAD, (check_name(name),))
        return Head(*records[0]) if records else None

    def heads(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[Head]:
        start = max(prefix, after)  # one bound, so that a later page does not read the earlier ones
        with self._handle as db:
            records = fetch_all(db, _HEADS, (start, after, prefix, check_limit(limit)))
        return [Head(*row) for row in records]

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
            _add_timelines(db, timelines)
            for append in appends:
                _add_events(db, append.timeline, append.events, self._zstd)
            for move in moves:
                _move(db, move, now)
                db.execute(_LOG, (now, verb, move.name, move.expect, move.to, actor, detail))
            change_rows(db, rows)
            stored = move_evidence(db, moves, appends, rows, leases)
            db.execute(_COMMIT)
        self._note(stored)
        self._log_changes(moves, rows)
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
            db.execute(_TRIM_OPS, (before_time,))
            return db.changes()

    # leases

    def acquire(self, name: str, owner: str, ttl_ns: int) -> Lease:
        with self._handle.writing() as db:
            db.execute(_BEGIN)
            lease = claim_lease(db, LeaseClaim(name, owner, ttl_ns), self._clock.now_ns())
            db.execute(_COMMIT)
        self._note(Evidence(FENCE, lease.name, lease.fence))
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
            records = fetch_all(db, _ROWS, (check_name(kind), after, check_limit(limit)))
        return [CatalogRow(*row) for row in records]

    def put_row(self, kind: str, key: str, value: bytes, expect: int | None = None) -> CatalogRow:
        with self._handle.writing() as db:
            db.execute(_BEGIN)
            check_row_version(db, kind, key, expect)
            row = CatalogRow(kind, key, value, put_row(db, kind, key, value))
            db.execute(_COMMIT)
        self._note(Evidence(ROW, key, row.version, kind))
        self._log_changes((), [RowChange(kind, key, value)])
        return row

    def drop_row(self, kind: str, key: str) -> None:
        with self._handle.writing() as db:
            db.execute(_BEGIN)
            drop_row(db, kind, key)
            stored = row_evidence(db, [RowChange(kind, key, None)])
            db.execute(_COMMIT)
        self._note(stored)
        self._log_changes((), [RowChange(kind, key, None)])

    # timelines

    def timeline(self, id_: str) -> Timeline | None:
        with self._handle as db:
            records = fetch_all(db, _TIMELINE, (raw_id(id_),))
        return Timeline(*records[0]) if records else None

    def timelines(self, ids: Sequence[str]) -> list[Timeline]:
        timelines = (self.timeline(id_) for id_ in ids)
        return [timeline for timeline in timelines if timeline is not None]

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
        if rows or not self._try_insert(timeline, events, lease):
            with self._handle.writing() as db:
                db.execute(_BEGIN)
                if lease is not None:
                    check_lease(db, lease, self._clock.now_ns())
                _add_events(db, timeline, events, self._zstd)
                change_rows(db, rows)
                db.execute(_COMMIT)
        if events:
            self._note(event_evidence(timeline, events[-1].seq, events[-1].head))
        self._log_changes((), rows)

    def _try_insert(self, timeline: str, events: Sequence[EventRow], lease: Lease | None) -> bool:
        """Append in one statement. Return False, without effect, if a transaction is needed."""
        if len(events) == 1:
            return self._add_one(timeline, events[0], lease)
        return 1 < len(events) <= _MAX_EVENTS_PER_INSERT and self._add_few(timeline, events, lease)

    def _add_one(self, timeline: str, event: EventRow, lease: Lease | None) -> bool:
        """Append one event in one statement. Return False, without effect, if a condition fails.

        The caller then uses a transaction, which raises the exact error.
        """

        def make() -> Insert:
            body = compress_body(event.body, self._zstd)
            values = (raw_id(timeline), event.seq, event.head, event.salt, body)

            def add(db: apsw.Connection) -> bool:
                if lease is None:
                    db.execute(_ADD_ONE_EVENT, values)
                else:
                    held = (lease.name, lease.owner, lease.fence, self._clock.now_ns())
                    db.execute(_ADD_ONE_EVENT_HELD, values + held)
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
            records = fetch_all(db, _NEWEST_EVENTS if newest else _EVENTS, values)
        if newest:
            records.reverse()
        zstd = self._zstd
        return [
            EventRow(seq, head, salt, decompress_body(body, zstd))
            for seq, head, salt, body in records
        ]

    def events_by_seq(self, timeline: str, seqs: Sequence[int]) -> list[EventRow]:
        asked = msgspec.json.encode(list(seqs)).decode()
        with self._handle as db:
            records = fetch_all(db, _EVENTS_BY_SEQ, (raw_id(timeline), asked))
        zstd = self._zstd
        return [
            EventRow(seq, head, salt, decompress_body(body, zstd))
            for seq, head, salt, body in records
        ]

    def last_seq(self, timeline: str) -> int:
        with self._handle as db:
            return _last_seq(db, timeline)

    def last_heads(self, timelines: Sequence[str]) -> list[bytes]:
        ids = msgspec.json.encode([raw_id(id_).hex() for id_ in timelines]).decode()
        with self._handle as db:
            return [head or b"" for (head,) in fetch_all(db, _LAST_HEADS, (ids,))]

    def trim_events(self, timeline: str, upto: int) -> int:
        with self._handle.writing() as db:
            db.execute(_TRIM_EVENTS, (raw_id(timeline), upto))
            return db.changes()

    def erase_events(self, timeline: str, seqs: Sequence[int]) -> int:
        with self._handle.writing() as db:
            self._zstd.clear_cache()
            db.execute("PRAGMA secure_delete = ON")  # overwrite freed space with zeros
            db.execute(_BEGIN)
            raw, count = raw_id(timeline), 0
            for seq in seqs:
                db.execute(_ERASE_EVENT, (raw, seq))
                count += db.changes()
            db.execute(_COMMIT)
            # the write-ahead log still has the old pages
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return count

    def drop_timeline(self, timeline: str) -> None:
        self._note(Evidence(NOTHING))  # before the commit: the last event may go with it
        with self._handle.writing() as db:
            raw = raw_id(timeline)
            db.execute(_BEGIN)
            if db.execute(_HAS_CHILDREN, (raw,)).get:
                raise errors.has_children(timeline)
            db.execute("DELETE FROM events WHERE timeline = ?", (raw,))
            db.execute("DELETE FROM timelines WHERE id = ?", (raw,))
            db.execute(_COMMIT)

    # maintenance

    def scrub(self) -> None:
        with self._handle as db:
            db.execute("VACUUM")  # a freed or split page keeps its old contents
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if self._log is not None:
            self._log.compact(always=True)

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
                problems = [
                    text for (text,) in db.execute("PRAGMA integrity_check") if text != "ok"
                ]
                return problems or _find_inconsistencies(db)
            except apsw.CorruptError as error:
                return [str(error)]
            except apsw.IOError as error:
                if not is_page_damaged(error):
                    raise
                return ["a page does not match its checksum"]

    def copy_to(self, path: Path) -> None:
        # a connection of its own: a large copy does not keep this one from others
        source = SqliteHandle(self._path, create=False, busy_ms=self._busy_ms)
        try:
            for suffix in ("", "-wal", "-shm", "-journal"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            with source as db:
                copy = apsw.Connection(str(path))
                try:
                    with copy.backup("main", db, "main") as pages:
                        pages.step()
                    copy.execute(_DROP_LEASES).fetchall()
                finally:
                    copy.close()
        finally:
            source.close()

    def close(self) -> None:
        self._handle.close()
        self._mark = None  # the last catalog of this process that uses the mark closes its file


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
    actual: Oid | None = db.execute("SELECT oid FROM heads WHERE name = ?", (name,)).get
    raise errors.head_moved(name, expect, actual)


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


def _add_timelines(db: apsw.Connection, timelines: Sequence[Timeline]) -> None:
    """Insert new timelines and check their fork points, inside a transaction."""
    checked: set[tuple[str, int]] = set()
    for line in timelines:
        if line.parent and (line.parent, line.at) not in checked:
            _check_fork_point(db, line.parent, line.at)
            checked.add((line.parent, line.at))
        raw = raw_id(line.id)
        try:
            db.execute(_ADD_TIMELINE, (raw, raw_id(line.parent) if line.parent else None, line.at))
        except apsw.ConstraintError:
            raise errors.timeline_exists(line.id) from None


def _check_fork_point(db: apsw.Connection, timeline: str, seq: int) -> None:
    """Raise Invalid unless a timeline can fork at event `seq`. Usually that event has a row."""
    records = fetch_all(db, _HAS_EVENT, (raw_id(timeline), seq))
    if not records and not 0 <= seq <= _last_seq(db, timeline):
        raise errors.bad_fork(timeline, seq)


def _add_events(
    db: apsw.Connection, timeline: str, events: Sequence[EventRow], zstd: BodyCompressor
) -> None:
    """Append events inside a transaction. The first one must be the next of its timeline."""
    last = _last_seq(db, timeline)
    if [event.seq for event in events] != list(range(last + 1, last + 1 + len(events))):
        raise errors.seq_taken(timeline, events[0].seq, last)
    raw = raw_id(timeline)
    db.executemany(
        _ADD_EVENT, ((raw, e.seq, e.head, e.salt, compress_body(e.body, zstd)) for e in events)
    )


@cache
def _insert_several_sql(count: int, is_leased: bool) -> str:
    numbers = range(7, 7 + 3 * count, 3)
    rows = ", ".join(f"({n}, ?{i}, ?{i + 1}, ?{i + 2})" for n, i in enumerate(numbers))
    return _ADD_SEVERAL_EVENTS.format(rows) + (_IF_LEASE_HELD_SEVERAL if is_leased else "")


def _last_seq(db: apsw.Connection, timeline: str) -> int:
    records = fetch_all(db, _LAST_SEQ, (raw_id(timeline),))
    if not records:
        raise errors.no_timeline(timeline)
    return int(records[0][0])

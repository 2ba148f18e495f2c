"""Catalog in one SQLite file: many threads and processes of one host, every commit synced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw

from ortet.backend import refusals
from ortet.backend.abc import Catalog, Head, Lease, Move, Op, Row
from ortet.backend.keys import check_limit, check_name
from ortet.backend.sqlite_open import Handle
from ortet.errors import Invalid
from ortet.ids import OID_BYTES, Clock, Oid, SystemClock

_FOREVER = 2**63 - 1

# Statements are constants, so that apsw finds them prepared. Every write begins IMMEDIATE: a
# transaction that reads first and then wants to write is refused without being allowed to wait.
_BEGIN = "BEGIN IMMEDIATE"
_COMMIT = "COMMIT"
_HEAD = "SELECT name, oid, version, time FROM heads WHERE name = ?"
_HEADS = """SELECT name, oid, version, time FROM heads
    WHERE name >= ? AND name <> ? AND name <= ? || char(1114111) ORDER BY name LIMIT ?"""
_CREATE = """INSERT INTO heads (name, oid, version, time)
    SELECT ?, ?, value + 1, ? FROM floors WHERE of = 'head' ON CONFLICT DO NOTHING"""
_UPDATE = "UPDATE heads SET oid = ?, version = version + 1, time = ? WHERE name = ? AND oid = ?"
_DELETE = "DELETE FROM heads WHERE name = ? AND oid = ? RETURNING version"
_RAISE = "UPDATE floors SET value = max(value, ?2) WHERE of = ?1"
_LOG = "INSERT INTO ops (time, verb, name, old, new, actor, detail) VALUES (?, ?, ?, ?, ?, ?, ?)"
_OPS = """SELECT seq, time, verb, name, old, new, actor, detail FROM ops
    WHERE seq > ? ORDER BY seq LIMIT ?"""
_OPS_OF = """SELECT seq, time, verb, name, old, new, actor, detail FROM ops
    WHERE name = ? AND seq > ? ORDER BY seq LIMIT ?"""
_TRIM = """DELETE FROM ops WHERE time < ? AND seq < (SELECT max(seq) FROM ops) AND NOT EXISTS (
    SELECT 1 FROM heads WHERE heads.name = ops.name
        AND ops.seq = (SELECT max(o.seq) FROM ops AS o WHERE o.name = ops.name))"""
_LEASE = "SELECT name, owner, fence, expires FROM leases WHERE name = ?"
_HOLD = "INSERT OR REPLACE INTO leases (name, owner, fence, expires) VALUES (?, ?, ?, ?)"
_EXTEND = "UPDATE leases SET expires = ? WHERE name = ? AND owner = ? AND fence = ?"
_END = "DELETE FROM leases WHERE name = ? AND owner = ? AND fence = ?"
_FLOOR = "SELECT value FROM floors WHERE of = ?"
_ROW = "SELECT kind, key, value, version FROM records WHERE kind = ? AND key = ?"
_ROWS = (
    "SELECT kind, key, value, version FROM records WHERE kind = ? AND key > ? ORDER BY key LIMIT ?"
)
_PUT = """INSERT INTO records (kind, key, value, version)
    SELECT ?, ?, ?, value + 1 FROM floors WHERE of = 'row'
    ON CONFLICT DO UPDATE SET value = excluded.value, version = records.version + 1
    RETURNING version"""
_DROP = "DELETE FROM records WHERE kind = ? AND key = ? RETURNING version"


class SqliteCatalog(Catalog):
    """The catalog of an embedded store.

    With `create=False` a missing or empty file is Corrupt("no_catalog"). A transaction waits up to
    `busy_ms` for other processes, then it is Unavailable("busy"). Safe across os.fork: either side
    opens the file again at its next call.
    """

    def __init__(
        self, path: Path, clock: Clock | None = None, *, create: bool = True, busy_ms: int = 30_000
    ) -> None:
        self._clock = clock or SystemClock()
        self._handle = Handle(path, create=create, busy_ms=busy_ms)

    # heads

    def head(self, name: str) -> Head | None:
        with self._handle as db:
            found = _all(db, _HEAD, (check_name(name),))
        return Head(*found[0]) if found else None

    def heads(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[Head]:
        start = max(prefix, after)  # one bound, so that a later page does not read the ones before
        with self._handle as db:
            found = _all(db, _HEADS, (start, after, prefix, check_limit(limit)))
        return [Head(*row) for row in found]

    def move(
        self,
        moves: Sequence[Move],
        *,
        verb: str,
        actor: str = "",
        detail: str = "",
        lease: Lease | None = None,
        rows: Sequence[tuple[str, str, bytes | None]] = (),
    ) -> None:
        with self._handle as db:
            db.execute(_BEGIN)
            now = self._clock.now_ns()  # after the wait for the lock, so that the log is in order
            if lease is not None:
                _check_lease(db, lease, now)
            for move in moves:
                _move(db, move, now)
                db.execute(_LOG, (now, verb, move.name, move.expect, move.to, actor, detail))
            for kind, key, value in rows:
                if value is None:
                    _drop(db, kind, key)
                else:
                    _put(db, kind, key, value)
            db.execute(_COMMIT)

    # operation log

    def ops(self, name: str | None = None, after: int = 0, limit: int = 1000) -> list[Op]:
        check_limit(limit)
        with self._handle as db:
            if name is None:
                return [Op(*row) for row in _all(db, _OPS, (after, limit))]
            return [Op(*row) for row in _all(db, _OPS_OF, (check_name(name), after, limit))]

    def last_op(self) -> int:
        with self._handle as db:
            return int(db.execute("SELECT coalesce(max(seq), 0) FROM ops").get)

    def trim_ops(self, before_time: int) -> int:
        with self._handle as db:
            db.execute(_TRIM, (before_time,))
            return db.changes()

    # leases

    def acquire(self, name: str, owner: str, ttl_ns: int) -> Lease:
        check_name(name)
        with self._handle as db:
            db.execute(_BEGIN)
            now = self._clock.now_ns()
            held = _lease(db, name)
            if held and held.owner != owner and held.expires > now:
                raise refusals.lease_held(held)
            if held and held.owner == owner:
                fence = held.fence
            else:
                fence = 1 + max(int(db.execute(_FLOOR, ("fence",)).get), held.fence if held else 0)
            lease = Lease(name, owner, fence, _expiry(now, ttl_ns))
            db.execute(_HOLD, (lease.name, lease.owner, lease.fence, lease.expires))
            db.execute(_COMMIT)
        return lease

    def extend(self, lease: Lease, ttl_ns: int) -> Lease:
        with self._handle as db:
            db.execute(_BEGIN)
            expires = _expiry(self._clock.now_ns(), ttl_ns)
            db.execute(_EXTEND, (expires, lease.name, lease.owner, lease.fence))
            if not db.changes():
                raise refusals.lease_lost(lease)
            db.execute(_COMMIT)
        return Lease(lease.name, lease.owner, lease.fence, expires)

    def release(self, lease: Lease) -> None:
        with self._handle as db:
            db.execute(_BEGIN)
            db.execute(_END, (lease.name, lease.owner, lease.fence))
            if db.changes():
                db.execute(_RAISE, ("fence", lease.fence))
            db.execute(_COMMIT)

    def seize(self, lease: Lease) -> None:
        self.release(lease)  # the same deed; the names say who may do it

    def lease(self, name: str) -> Lease | None:
        with self._handle as db:
            return _lease(db, check_name(name))

    # records

    def row(self, kind: str, key: str) -> Row | None:
        with self._handle as db:
            return _row(db, check_name(kind), check_name(key))

    def rows(self, kind: str, after: str = "", limit: int = 1000) -> list[Row]:
        with self._handle as db:
            found = _all(db, _ROWS, (check_name(kind), after, check_limit(limit)))
        return [Row(*row) for row in found]

    def put_row(self, kind: str, key: str, value: bytes, expect: int | None = None) -> Row:
        with self._handle as db:
            db.execute(_BEGIN)
            if expect is not None:
                found = _row(db, kind, key)
                version = found.version if found else 0
                if version != expect:
                    raise refusals.row_moved(kind, key, expect, version)
            row = Row(kind, key, value, _put(db, kind, key, value))
            db.execute(_COMMIT)
        return row

    def drop_row(self, kind: str, key: str) -> None:
        with self._handle as db:
            db.execute(_BEGIN)
            _drop(db, kind, key)
            db.execute(_COMMIT)

    def check(self) -> list[str]:
        with self._handle as db:
            try:
                found = [text for (text,) in db.execute("PRAGMA integrity_check") if text != "ok"]
                return found or _inconsistent(db)
            except apsw.CorruptError as error:
                return [str(error)]

    def close(self) -> None:
        self._handle.close()


def _all(db: apsw.Connection, sql: str, values: tuple[Any, ...]) -> list[Any]:
    """Every row at once: a statement left half-read would hold its snapshot."""
    return db.execute(sql, values).fetchall()


def _move(db: apsw.Connection, move: Move, now: int) -> None:
    name, expect, to = check_name(move.name), move.expect, move.to
    if expect is None and to is None:
        raise Invalid(
            "empty_move", f"a move of {name} from nothing to nothing: say where it should go"
        )
    if to is None:
        for (version,) in _all(db, _DELETE, (name, expect)):
            db.execute(_RAISE, ("head", version))
            return
    else:
        if expect is None:
            db.execute(_CREATE, (name, to, now))
        else:
            db.execute(_UPDATE, (to, now, name, expect))
        if db.changes():
            return
    found: Oid | None = db.execute("SELECT oid FROM heads WHERE name = ?", (name,)).get
    raise refusals.head_moved(name, expect, found)


def _check_lease(db: apsw.Connection, lease: Lease, now: int) -> None:
    held = _lease(db, lease.name)
    if not held or held.owner != lease.owner or held.fence != lease.fence or held.expires <= now:
        raise refusals.lease_lost(lease)


def _lease(db: apsw.Connection, name: str) -> Lease | None:
    found = _all(db, _LEASE, (name,))
    return Lease(*found[0]) if found else None


def _expiry(now: int, ttl_ns: int) -> int:
    if ttl_ns <= 0:
        raise Invalid(
            "bad_ttl", f"a lease of {ttl_ns} ns cannot be held: give a time to live above 0"
        )
    return min(now + ttl_ns, _FOREVER)


def _row(db: apsw.Connection, kind: str, key: str) -> Row | None:
    found = _all(db, _ROW, (kind, key))
    return Row(*found[0]) if found else None


def _put(db: apsw.Connection, kind: str, key: str, value: bytes) -> int:
    ((version,),) = _all(db, _PUT, (check_name(kind), check_name(key), value))
    return int(version)


def _drop(db: apsw.Connection, kind: str, key: str) -> None:
    for (version,) in _all(db, _DROP, (check_name(kind), check_name(key))):
        db.execute(_RAISE, ("row", version))


def _inconsistent(db: apsw.Connection) -> list[str]:
    """What SQLite cannot know: ids have a length, and the log ends where its head is."""
    bad = db.execute("SELECT name FROM heads WHERE length(oid) <> ? ORDER BY name", (OID_BYTES,))
    strange = db.execute(
        """SELECT heads.name FROM heads JOIN ops
        ON ops.seq = (SELECT max(o.seq) FROM ops AS o WHERE o.name = heads.name)
        WHERE ops.new IS NOT heads.oid ORDER BY heads.name"""
    )
    return [f"head {name} does not hold an object id" for (name,) in bad] + [
        f"head {name} is not where its last operation put it" for (name,) in strange
    ]

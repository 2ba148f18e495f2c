"""Leases and records in SQLite. All functions run inside a transaction of the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from ortet.backends import errors
from ortet.backends.base import CatalogRow, Lease, LeaseClaim, RowChange
from ortet.backends.keys import check_name
from ortet.errors import Invalid

_FOREVER = 2**63 - 1
_LEASE = "SELECT name, owner, fence, expires FROM leases WHERE name = ?"
_UPSERT_LEASE = "INSERT OR REPLACE INTO leases (name, owner, fence, expires) VALUES (?, ?, ?, ?)"
# A fork runs this a hundred times. RETURNING or SELECT would create a temporary table each time.
_CLAIM = (
    "INSERT INTO leases (name, owner, fence, expires) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_FLOOR = "SELECT value FROM floors WHERE of = ?"
_ROW = "SELECT kind, key, value, version FROM records WHERE kind = ? AND key = ?"
_PUT = """INSERT INTO records (kind, key, value, version)
    SELECT ?, ?, ?, value + 1 FROM floors WHERE of = 'row'
    ON CONFLICT DO UPDATE SET value = excluded.value, version = records.version + 1
    RETURNING version"""
_ADD = """INSERT INTO records (kind, key, value, version)
    VALUES (?, ?, ?, (SELECT value + 1 FROM floors WHERE of = 'row')) ON CONFLICT DO NOTHING"""
_DROP = "DELETE FROM records WHERE kind = ? AND key = ? RETURNING version"
RAISE_FLOOR = "UPDATE floors SET value = max(value, ?2) WHERE of = ?1"


def fetch_all(db: apsw.Connection, sql: str, values: tuple[Any, ...]) -> list[Any]:
    """Return all rows at once. A partly read statement would keep its snapshot open."""
    return db.execute(sql, values).fetchall()


def claim_lease(db: apsw.Connection, claim: LeaseClaim, now: int) -> Lease:
    """Acquire a lease. The current owner renews it and keeps its fence."""
    expires = expiry(now, claim.ttl_ns)
    fence = 1 + int(db.execute(_FLOOR, ("fence",)).get)
    db.execute(_CLAIM, (check_name(claim.name), claim.owner, fence, expires))
    if db.changes():
        return Lease(claim.name, claim.owner, fence, expires)
    held = find_lease(db, claim.name)
    if held and held.owner != claim.owner and held.expires > now:
        raise errors.lease_held(held)
    if held:
        fence = held.fence if held.owner == claim.owner else max(fence, held.fence + 1)
    lease = Lease(claim.name, claim.owner, fence, expires)
    db.execute(_UPSERT_LEASE, (lease.name, lease.owner, lease.fence, lease.expires))
    return lease


def check_lease(db: apsw.Connection, lease: Lease, now: int) -> None:
    """Raise Refused unless `lease` is the newest of its name and has not expired."""
    held = find_lease(db, lease.name)
    if not held or held.owner != lease.owner or held.fence != lease.fence or held.expires <= now:
        raise errors.lease_lost(lease)


def find_lease(db: apsw.Connection, name: str) -> Lease | None:
    """Return the newest lease on `name`, or None."""
    records = fetch_all(db, _LEASE, (name,))
    return Lease(*records[0]) if records else None


def expiry(now: int, ttl_ns: int) -> int:
    """Return the expiry time of a lease. Raise Invalid("bad_ttl") if `ttl_ns` is not positive."""
    if ttl_ns <= 0:
        raise Invalid(
            "bad_ttl", f"a lease of {ttl_ns} ns cannot be held: give a time to live above 0"
        )
    return min(now + ttl_ns, _FOREVER)


def find_row(db: apsw.Connection, kind: str, key: str) -> CatalogRow | None:
    """Return a row, or None."""
    records = fetch_all(db, _ROW, (kind, key))
    return CatalogRow(*records[0]) if records else None


def change_rows(db: apsw.Connection, changes: Sequence[RowChange]) -> None:
    """Apply row changes. Raise Conflict("row_moved") if a version is not as expected."""
    for change in changes:
        if change.expect == 0 and change.value is not None:
            values = (check_name(change.kind), check_name(change.key), change.value)
            db.execute(_ADD, values)
            if db.changes():  # otherwise the check below raises the exact error
                continue
        check_row_version(db, change.kind, change.key, change.expect)
        if change.value is None:
            drop_row(db, change.kind, change.key)
        else:
            put_row(db, change.kind, change.key, change.value)


def check_row_version(db: apsw.Connection, kind: str, key: str, expect: int | None) -> None:
    """Raise Conflict("row_moved") unless the row has version `expect`; None: any."""
    if expect is not None:
        row = find_row(db, kind, key)
        version = row.version if row else 0
        if version != expect:
            raise errors.row_moved(kind, key, expect, version)


def put_row(db: apsw.Connection, kind: str, key: str, value: bytes) -> int:
    """Write a row and return its new version."""
    ((version,),) = fetch_all(db, _PUT, (check_name(kind), check_name(key), value))
    return int(version)


def drop_row(db: apsw.Connection, kind: str, key: str) -> None:
    """Delete a row. Its version is remembered, so that a later row continues above it."""
    for (version,) in fetch_all(db, _DROP, (check_name(kind), check_name(key))):
        db.execute(RAISE_FLOOR, ("row", version))

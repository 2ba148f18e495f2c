"""The Catalog in PostgreSQL, for any number of hosts.

Each method is one statement that calls one of our SQL functions, and so one transaction. See the
folder migrations and docs/decisions/0016-postgresql.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any
from uuid import UUID

import msgspec
from psycopg import sql

from ortet._util.lock_timeout import current_lock_timeout
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
from ortet.backends.postgres.connection import PostgresClient
from ortet.backends.postgres.group_commit import (
    MAX_APPEND_BYTES,
    PendingAppend,
    group_commit_for,
)
from ortet.backends.postgres.rows import (
    WriteSlots,
    check_lease_ttl,
    check_names,
    claim_values,
    replace_nul,
    row_values,
)
from ortet.backends.postgres.schema import SELECT_VERSION, check_version
from ortet.backends.row_codec import (
    MAX_BODY_BYTES,
    CachingCompressor,
    compress_body,
    decompress_body,
    raw_id,
)
from ortet.backends.sweep_epoch import EpochTracker
from ortet.errors import Invalid, Refused
from ortet.ids import OID_BYTES, Clock, SystemClock

_HEAD = "SELECT name, oid, version, time FROM heads WHERE name = %s"
_HEADS = """SELECT name, oid, version, time FROM heads
    WHERE name >= %s AND name <> %s AND name <= %s || chr(1114111) ORDER BY name LIMIT %s"""
_MOVE = """SELECT name, owner, fence, expires, moment(NULL) FROM move(%(slot)s, %(request)s::bigint,
    %(epoch)s::bigint, %(at)s::bigint, %(lease)s::text, %(owner)s::text, %(fence)s::bigint,
    %(claims)s::text[], %(owners)s::text[], %(ttls)s::bigint[],
    %(ids)s::uuid[], %(parents)s::uuid[], %(points)s::bigint[],
    %(lines)s::uuid[], %(firsts)s::bigint[], %(ends)s::int[], %(heads)b::bytea[],
    %(salts)b::bytea[], %(bodies)b::bytea[],
    %(names)s::text[], %(olds)b::bytea[], %(news)b::bytea[], %(verb)s, %(actor)s, %(detail)s,
    %(kinds)s::text[], %(keys)s::text[], %(values)b::bytea[], %(expects)s::bigint[])"""
_OPS_OF = """SELECT seq, time, verb, name, old, new, actor, detail FROM ops
    WHERE name = %s AND seq > %s::bigint ORDER BY seq LIMIT %s"""
_OPS = """SELECT seq, time, verb, name, old, new, actor, detail
    FROM ops_of_all(%s::bigint, %s::bigint)"""
_TRIM_OPS = """WITH gone AS (DELETE FROM ops WHERE time < %s::bigint
    AND seq < (SELECT max(seq) FROM ops)
    AND NOT EXISTS (SELECT 1 FROM heads WHERE heads.name = ops.name
        AND ops.seq = (SELECT max(o.seq) FROM ops AS o WHERE o.name = ops.name)) RETURNING 1)
    SELECT count(*) FROM gone"""
_CLAIM = """SELECT name, owner, fence, expires, moment(NULL)
    FROM claim(%s, %s, %s::bigint, %s::bigint)"""
_EXTEND = """SELECT name, owner, fence, expires, moment(NULL)
    FROM prolong(%s, %s, %s::bigint, %s::bigint, %s::bigint)"""
_END = "DELETE FROM leases WHERE name = %s AND owner = %s AND fence = %s::bigint"
_LEASE = "SELECT name, owner, fence, expires, moment(NULL) FROM leases WHERE name = %s"
_ROW = "SELECT kind, key, value, version FROM records WHERE kind = %s AND key = %s"
_ROWS = """SELECT kind, key, value, version FROM records
    WHERE kind = %s AND key > %s ORDER BY key LIMIT %s"""
_PUT = """SELECT put_row_in(%(epoch)s::bigint, %(kind)s, %(key)s, %(value)s::bytea,
    %(expect)s::bigint, %(slot)s, %(request)s::bigint)"""
_TIMELINE = "SELECT id, parent, at FROM timelines WHERE id = %s"
_TIMELINES = "SELECT id, parent, at FROM timelines WHERE id = ANY (%s::uuid[])"
_CHILDREN = """SELECT id, parent, at FROM timelines
    WHERE parent = %s AND id > %s ORDER BY id LIMIT %s"""
_FIRST_CHILDREN = "SELECT id, parent, at FROM timelines WHERE parent = %s ORDER BY id LIMIT %s"
_APPEND = """SELECT append(%(line)s, %(first)s::bigint, %(heads)b::bytea[], %(salts)b::bytea[],
    %(bodies)b::bytea[], %(lease)s::text, %(owner)s::text, %(fence)s::bigint, %(at)s::bigint,
    %(epoch)s::bigint, %(doubt)s, %(kinds)s::text[], %(keys)s::text[], %(values)b::bytea[],
    %(expects)s::bigint[])"""
# One event and no rows: encoding seven arrays would take the driver as long as everything else.
_APPEND_ONE = """SELECT append(%(line)s, %(first)s::bigint, ARRAY[%(head)b::bytea],
    ARRAY[%(salt)b::bytea], ARRAY[%(body)b::bytea], %(lease)s::text, %(owner)s::text,
    %(fence)s::bigint, %(at)s::bigint, %(epoch)s::bigint, %(doubt)s, '{}', '{}', '{}', '{}')"""
_EVENTS = """SELECT seq, head, coalesce(salt, ''), coalesce(body, '') FROM events
    WHERE timeline = %s AND seq > %s::bigint ORDER BY seq LIMIT %s"""
_NEWEST_EVENTS = """SELECT seq, head, coalesce(salt, ''), coalesce(body, '') FROM events
    WHERE timeline = %s AND seq > %s::bigint ORDER BY seq DESC LIMIT %s"""
_EVENTS_BY_SEQ = """SELECT seq, head, coalesce(salt, ''), coalesce(body, '') FROM events
    WHERE timeline = %s AND seq = ANY (%s::bigint[]) ORDER BY seq"""
_LAST_SEQ = "SELECT last FROM timelines WHERE id = %s"
_LAST_HEADS = """SELECT head FROM unnest(%s::uuid[]) WITH ORDINALITY AS asked (id, n)
    LEFT JOIN timelines USING (id)
    LEFT JOIN events ON timeline = timelines.id AND seq = last AND last > at ORDER BY n"""
_TRIM_EVENTS = """WITH gone AS (DELETE FROM events USING timelines
    WHERE timeline = %s AND id = timeline AND seq <= %s::bigint AND seq < last RETURNING 1)
    SELECT count(*) FROM gone"""
_ERASE_EVENTS = """UPDATE events SET salt = NULL, body = NULL
    WHERE timeline = %s AND seq = ANY (%s::bigint[]) AND body IS NOT NULL
    RETURNING tableoid::regclass::text"""
_EPOCH = "SELECT value FROM floors WHERE \"of\" = 'epoch'"
_RAISE = "SELECT raise_epoch(%s, %s, %s::bigint, %s::bigint)"
_DELETE_OLD_WRITERS = "DELETE FROM writers WHERE time < now() - interval '1 day'"
_TABLES = ("heads", "ops", "leases", "records", "timelines", "writers")
_PARTS = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'events'::regclass"
_BAD_HEADS = "SELECT name FROM heads WHERE length(oid) <> %s ORDER BY name"
_INCONSISTENT_HEADS = """SELECT heads.name FROM heads JOIN ops
    ON ops.seq = (SELECT max(o.seq) FROM ops AS o WHERE o.name = heads.name)
    WHERE ops.new IS DISTINCT FROM heads.oid ORDER BY heads.name"""
_INCONSISTENT_TIMELINES = """SELECT id FROM timelines WHERE last > at
    AND last IS DISTINCT FROM (SELECT max(seq) FROM events WHERE timeline = id) ORDER BY id"""

_DROP_PARTITION_FRACTION = 4
"""A partition is dropped if at most one in this many of its bytes is still in use."""
_IGNORED_SKEW_NS = 1_000_000_000
"""Smaller clock differences are ignored.

Otherwise a lease would seem to end at another time with each call.
"""


class PostgresCatalog(Catalog):
    """The catalog of a store that many hosts share.

    Times are those of the database, the only clock that all servers share. A clock other than
    SystemClock overrides it. Lease expiry is converted to the local clock. With `create=False`, a
    missing schema raises Corrupt("no_catalog").
    """

    def __init__(
        self,
        url: str,
        clock: Clock | None = None,
        *,
        schema: str = "ortet",
        create: bool = True,
        connections: int = 16,
        wait: float = 30.0,
    ) -> None:
        self._clock = clock or SystemClock()
        self._has_server_clock = isinstance(self._clock, SystemClock)
        self._skew = 0
        self._slots = WriteSlots()
        self._client = PostgresClient(
            url, schema=schema, create=create, connections=connections, wait=wait
        )
        self.database = self._client.database
        self.epochs = EpochTracker(lambda: int(self._client.run(_EPOCH)[0][0]))
        self._group_commit = group_commit_for(self.database)
        self._zstd = CachingCompressor()  # not thread-safe: use under `_compress_lock`
        self._compress_lock = Lock()

    @property
    def client(self) -> PostgresClient:
        """The client, for other tables in the same schema. It is closed with the catalog."""
        return self._client

    def _time_override(self) -> int | None:
        return None if self._has_server_clock else self._clock.now_ns()

    def _to_local_lease(self, row: tuple[Any, ...]) -> Lease:
        """Return the lease with its expiry on the local clock, which its holder compares.

        The database compares its own row.
        """
        *values, now = row
        lease = Lease(*values)
        if not self._has_server_clock:
            return lease
        self._update_skew(now)
        return msgspec.structs.replace(lease, expires=lease.expires - self._skew)

    def _update_skew(self, now: int) -> None:
        skew = now - self._clock.now_ns()
        if abs(skew - self._skew) > _IGNORED_SKEW_NS:
            self._skew = skew if abs(skew) > _IGNORED_SKEW_NS else 0

    # heads

    def head(self, name: str) -> Head | None:
        records = self._client.run(_HEAD, (check_name(name),))
        return Head(*records[0]) if records else None

    def heads(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[Head]:
        values = (max(prefix, after), after, prefix, check_limit(limit))
        return [Head(*row) for row in self._client.run(_HEADS, values)]

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
        values = {
            "epoch": self.epochs.write_epoch(),
            "at": self._time_override(),
            "lease": lease and lease.name,
            "owner": lease and lease.owner,
            "fence": lease and lease.fence,
            **claim_values(claims),
            "ids": [_timeline_uuid(line.id) for line in timelines],
            "parents": [_timeline_uuid(line.parent) if line.parent else None for line in timelines],
            "points": [line.at for line in timelines],
            **self._append_values(appends),
            "names": [_checked_head_name(move) for move in moves],
            "olds": [move.expect for move in moves],
            "news": [move.to for move in moves],
            **{
                "verb": replace_nul(verb),
                "actor": replace_nul(actor),
                "detail": replace_nul(detail),
            },
            **row_values(rows),
        }
        try:
            with self._slots.acquire() as slot, self.epochs.observe_conflicts():
                claimed = self._client.run(_MOVE, {**values, **slot}, lease=lease)
        except Refused as error:
            raise self._to_local_refusal(error) from error.__cause__
        return [self._to_local_lease(row) for row in claimed]

    def _to_local_refusal(self, error: Refused) -> Refused:
        if error.kind == "lease_held":
            error.details["expires"] -= self._skew
        return error

    # operation log

    def ops(self, name: str | None = None, after: int = 0, limit: int = 1000) -> list[Op]:
        check_limit(limit)
        if name is None:
            return [Op(*row) for row in self._client.run(_OPS, (after, limit))]
        return [Op(*row) for row in self._client.run(_OPS_OF, (check_name(name), after, limit))]

    def last_op(self) -> int:
        return int(self._client.run("SELECT last_op()")[0][0])

    def trim_ops(self, before_time: int) -> int:
        return int(self._client.run(_TRIM_OPS, (before_time,))[0][0])

    # leases

    def acquire(self, name: str, owner: str, ttl_ns: int) -> Lease:
        try:
            claimed = self._client.run(
                _CLAIM, (check_names(name), owner, check_lease_ttl(ttl_ns), self._time_override())
            )
        except Refused as error:
            raise self._to_local_refusal(error) from error.__cause__
        return self._to_local_lease(claimed[0])

    def extend(self, lease: Lease, ttl_ns: int) -> Lease:
        values = (
            lease.name,
            lease.owner,
            lease.fence,
            check_lease_ttl(ttl_ns),
            self._time_override(),
        )
        records = self._client.run(_EXTEND, values)
        if not records:
            raise errors.lease_lost(lease)
        return self._to_local_lease(records[0])

    def release(self, lease: Lease) -> None:
        self._client.run(_END, (lease.name, lease.owner, lease.fence))

    def seize(self, lease: Lease) -> None:
        self.release(lease)  # same effect; the two names separate who may call them

    def lease(self, name: str) -> Lease | None:
        records = self._client.run(_LEASE, (check_name(name),))
        return self._to_local_lease(records[0]) if records else None

    # records

    def row(self, kind: str, key: str) -> CatalogRow | None:
        records = self._client.run(_ROW, (check_name(kind), check_name(key)))
        return CatalogRow(*records[0]) if records else None

    def rows(self, kind: str, after: str = "", limit: int = 1000) -> list[CatalogRow]:
        records = self._client.run(_ROWS, (check_name(kind), after, check_limit(limit)))
        return [CatalogRow(*row) for row in records]

    def put_row(self, kind: str, key: str, value: bytes, expect: int | None = None) -> CatalogRow:
        return CatalogRow(kind, key, value, self._put(kind, key, value, expect))

    def drop_row(self, kind: str, key: str) -> None:
        self._put(kind, key, None, None)

    def _put(self, kind: str, key: str, value: bytes | None, expect: int | None) -> int:
        check_names(kind, key)
        epoch = self.epochs.write_epoch()
        values = {"epoch": epoch, "kind": kind, "key": key, "value": value, "expect": expect}
        with self._slots.acquire() as slot, self.epochs.observe_conflicts():
            return int(self._client.run(_PUT, {**values, **slot})[0][0] or 0)

    # timelines

    def timeline(self, id_: str) -> Timeline | None:
        records = self._client.run(_TIMELINE, (_timeline_uuid(id_),))
        return _timeline(records[0]) if records else None

    def timelines(self, ids: Sequence[str]) -> list[Timeline]:
        records = self._client.run(_TIMELINES, ([_timeline_uuid(id_) for id_ in ids],))
        return [_timeline(row) for row in records]

    def children(self, id_: str, after: str = "", limit: int = 1000) -> list[Timeline]:
        if after:
            values = (_timeline_uuid(id_), _timeline_uuid(after), check_limit(limit))
            return [_timeline(row) for row in self._client.run(_CHILDREN, values)]
        records = self._client.run(_FIRST_CHILDREN, (_timeline_uuid(id_), check_limit(limit)))
        return [_timeline(row) for row in records]

    def append(
        self,
        timeline: str,
        events: Sequence[EventRow],
        *,
        lease: Lease | None = None,
        rows: Sequence[RowChange] = (),
    ) -> None:
        _check_consecutive(self, timeline, events)
        line, first, columns = (
            _timeline_uuid(timeline),
            events[0].seq if events else 0,
            self._columns(events),
        )
        time, epoch = self._time_override(), self.epochs.write_epoch()

        def alone(doubt: bool) -> None:
            values = {
                "line": line,
                "first": first,
                "lease": lease and lease.name,
                "owner": lease and lease.owner,
                "fence": lease and lease.fence,
                "at": time,
                "epoch": epoch,
                "doubt": doubt,
            }
            statement = _APPEND_ONE if len(events) == 1 and not rows else _APPEND
            if statement is _APPEND_ONE:
                head, salt, body = (part[0] for part in columns.values())
                values |= {"head": head, "salt": salt, "body": body}
            else:
                values |= {**columns, **row_values(rows)}
            with self.epochs.observe_conflicts():
                self._client.run(statement, values, lease=lease)

        if (
            rows
            or not events
            or current_lock_timeout() is not None
            or sum(map(len, columns["bodies"])) > MAX_APPEND_BYTES
        ):
            alone(False)
        else:
            pending = PendingAppend(line, first, **columns, lease=lease, at=time, epoch=epoch)
            self._group_commit.append(pending, self._client.run, alone)

    def _columns(self, events: Sequence[EventRow]) -> dict[str, list[bytes]]:
        with self._compress_lock:
            bodies = [compress_body(event.body, self._zstd) for event in events]
        return {
            "heads": [event.head for event in events],
            "salts": [event.salt for event in events],
            "bodies": bodies,
        }

    def _append_values(self, appends: Sequence[Append]) -> dict[str, Any]:
        """Return the parameters of several appends, concatenated. `ends` holds the end of each."""
        ends: list[int] = []
        for append in appends:
            _check_consecutive(self, append.timeline, append.events)
            ends.append((ends[-1] if ends else 0) + len(append.events))
        return {
            "lines": [_timeline_uuid(append.timeline) for append in appends],
            "firsts": [append.events[0].seq if append.events else 0 for append in appends],
            "ends": ends,
            **self._columns([event for append in appends for event in append.events]),
        }

    def events(
        self, timeline: str, after: int = 0, limit: int = 1000, *, newest: bool = False
    ) -> list[EventRow]:
        values = (_timeline_uuid(timeline), after, min(check_limit(limit), MAX_BODY_BYTES))
        records = self._client.run(_NEWEST_EVENTS if newest else _EVENTS, values)
        if newest:
            records.reverse()
        zstd = self._zstd
        return [
            EventRow(seq, head, salt, decompress_body(body, zstd))
            for seq, head, salt, body in records
        ]

    def events_by_seq(self, timeline: str, seqs: Sequence[int]) -> list[EventRow]:
        records = self._client.run(_EVENTS_BY_SEQ, (_timeline_uuid(timeline), list(seqs)))
        zstd = self._zstd
        return [
            EventRow(seq, head, salt, decompress_body(body, zstd))
            for seq, head, salt, body in records
        ]

    def last_seq(self, timeline: str) -> int:
        records = self._client.run(_LAST_SEQ, (_timeline_uuid(timeline),))
        if not records:
            raise errors.no_timeline(timeline)
        return int(records[0][0])

    def last_heads(self, timelines: Sequence[str]) -> list[bytes]:
        records = self._client.run(_LAST_HEADS, ([_timeline_uuid(id_) for id_ in timelines],))
        return [head or b"" for (head,) in records]

    def trim_events(self, timeline: str, upto: int) -> int:
        return int(self._client.run(_TRIM_EVENTS, (_timeline_uuid(timeline), upto))[0][0])

    def erase_events(self, timeline: str, seqs: Sequence[int]) -> int:
        partitions = self._client.run(_ERASE_EVENTS, (_timeline_uuid(timeline), list(seqs)))
        with self._compress_lock:
            self._zstd.clear_cache()
        with self._client.dedicated_connection() as connection:
            for part in sorted({part for (part,) in partitions}):
                # the old row version stays in its page until the table is rewritten
                connection.execute(sql.SQL("VACUUM (FULL) {}").format(sql.Identifier(part)))
        return len(partitions)

    def drop_timeline(self, timeline: str) -> None:
        self._client.run("SELECT drop_timeline(%s)", (_timeline_uuid(timeline),))

    # maintenance

    def raise_epoch(self, lease: Lease) -> int:
        """Start a new sweep epoch; see `EpochFencedCatalog`.

        If the answer is lost, the retry raises the epoch twice, which refuses no additional writes.
        """
        values = (lease.name, lease.owner, lease.fence, self._time_override())
        self.epochs.observe(int(self._client.run(_RAISE, values, lease=lease)[0][0]))
        return self.epochs.cached()

    def scrub(self) -> None:
        with self._client.dedicated_connection() as connection:
            parts = [part for (part,) in connection.execute(_PARTS).fetchall()]
            for table in (*_TABLES, *parts):
                connection.execute(sql.SQL("VACUUM (FULL) {}").format(sql.Identifier(table)))

    def reclaim(self) -> None:
        self._client.run(_DELETE_OLD_WRITERS)
        with self._client.dedicated_connection() as connection:
            connection.execute("SELECT drop_old(%s)", (_DROP_PARTITION_FRACTION,))

    def check_format(self) -> None:
        check_version(int(self._client.run(SELECT_VERSION)[0][0]), self._client.place)

    def check(self) -> list[str]:
        run = self._client.run
        return [
            *(
                f"head {name} does not hold an object id"
                for (name,) in run(_BAD_HEADS, (OID_BYTES,))
            ),
            *(
                f"head {name} is not where its last operation put it"
                for (name,) in run(_INCONSISTENT_HEADS)
            ),
            *(
                f"timeline {id_.hex} does not end where it should"
                for (id_,) in run(_INCONSISTENT_TIMELINES)
            ),
        ]

    def close(self) -> None:
        self._client.close()


def _checked_head_name(move: Move) -> str:
    name = check_names(move.name)
    if move.expect is None and move.to is None:
        raise Invalid(
            "empty_move", f"a move of {name} from nothing to nothing: say where it should go"
        )
    return name


def _check_consecutive(catalog: Catalog, timeline: str, events: Sequence[EventRow]) -> None:
    """Raise Conflict unless the events are numbered consecutively.

    The database checks that the first one is the next of its timeline.
    """
    if events and [e.seq for e in events] != list(
        range(events[0].seq, events[0].seq + len(events))
    ):
        raise errors.seq_taken(timeline, events[0].seq, catalog.last_seq(timeline))


def _timeline_uuid(id_: str) -> UUID:
    return UUID(bytes=raw_id(id_))


def _timeline(row: tuple[Any, ...]) -> Timeline:
    id_, parent, fork_seq = row
    return Timeline(id_.hex, parent.hex if parent else "", fork_seq)

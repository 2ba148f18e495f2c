"""The timeline and event part of the PostgreSQL catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any
from uuid import UUID

from psycopg import sql

from ortet._util.lock_timeout import current_lock_timeout
from ortet.backends import errors
from ortet.backends.base import Append, EventRow, Lease, RowChange, Timeline, Timelines
from ortet.backends.keys import check_limit
from ortet.backends.postgres.connection import PostgresClient
from ortet.backends.postgres.group_commit import MAX_APPEND_BYTES as TOGETHER
from ortet.backends.postgres.group_commit import GroupCommit, PendingAppend
from ortet.backends.postgres.rows import row_values
from ortet.backends.row_codec import (
    MAX_BODY_BYTES,
    CachingCompressor,
    compress_body,
    decompress_body,
    raw_id,
)
from ortet.backends.sweep_epoch import EpochTracker

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
_NEWEST = """SELECT seq, head, coalesce(salt, ''), coalesce(body, '') FROM events
    WHERE timeline = %s AND seq > %s::bigint ORDER BY seq DESC LIMIT %s"""
_EVENTS_BY_SEQ = """SELECT seq, head, coalesce(salt, ''), coalesce(body, '') FROM events
    WHERE timeline = %s AND seq = ANY (%s::bigint[]) ORDER BY seq"""
_LAST = "SELECT last FROM timelines WHERE id = %s"
_LAST_HEADS = """SELECT head FROM unnest(%s::uuid[]) WITH ORDINALITY AS asked (id, n)
    LEFT JOIN timelines USING (id)
    LEFT JOIN events ON timeline = timelines.id AND seq = last AND last > at ORDER BY n"""
_TRIM = """WITH gone AS (DELETE FROM events USING timelines WHERE timeline = %s AND id = timeline
    AND seq <= %s::bigint AND seq < last RETURNING 1) SELECT count(*) FROM gone"""
_ERASE = """UPDATE events SET salt = NULL, body = NULL
    WHERE timeline = %s AND seq = ANY (%s::bigint[]) AND body IS NOT NULL
    RETURNING tableoid::regclass::text"""


class PostgresTimelines(Timelines):
    """The timelines and events of a PostgreSQL catalog. `PostgresCatalog` passes its parts.

    `time_override` returns the time of a clock other than SystemClock; None to use the database
    clock.
    """

    def __init__(
        self,
        client: PostgresClient,
        *,
        epochs: EpochTracker,
        group_commit: GroupCommit,
        time_override: Callable[[], int | None],
    ) -> None:
        self._client = client
        self._epochs = epochs
        self._group_commit = group_commit
        self._time_override = time_override
        self._zstd = CachingCompressor()  # not thread-safe: use under `_compress_lock`
        self._compress_lock = Lock()

    def timeline(self, id_: str) -> Timeline | None:
        found = self._client.run(_TIMELINE, (timeline_uuid(id_),))
        return _timeline(found[0]) if found else None

    def timelines(self, ids: Sequence[str]) -> list[Timeline]:
        found = self._client.run(_TIMELINES, ([timeline_uuid(id_) for id_ in ids],))
        return [_timeline(row) for row in found]

    def children(self, id_: str, after: str = "", limit: int = 1000) -> list[Timeline]:
        if after:
            values = (timeline_uuid(id_), timeline_uuid(after), check_limit(limit))
            return [_timeline(row) for row in self._client.run(_CHILDREN, values)]
        found = self._client.run(_FIRST_CHILDREN, (timeline_uuid(id_), check_limit(limit)))
        return [_timeline(row) for row in found]

    def append(
        self,
        timeline: str,
        events: Sequence[EventRow],
        *,
        lease: Lease | None = None,
        rows: Sequence[RowChange] = (),
    ) -> None:
        check_consecutive(self, timeline, events)
        line, first, columns = (
            timeline_uuid(timeline),
            events[0].seq if events else 0,
            self._columns(events),
        )
        at, epoch = self._time_override(), self._epochs.write_epoch()

        def alone(doubt: bool) -> None:
            values = {
                "line": line,
                "first": first,
                "lease": lease and lease.name,
                "owner": lease and lease.owner,
                "fence": lease and lease.fence,
                "at": at,
                "epoch": epoch,
                "doubt": doubt,
            }
            statement = _APPEND_ONE if len(events) == 1 and not rows else _APPEND
            if statement is _APPEND_ONE:
                head, salt, body = (part[0] for part in columns.values())
                values |= {"head": head, "salt": salt, "body": body}
            else:
                values |= {**columns, **row_values(rows)}
            with self._epochs.observe_conflicts():
                self._client.run(statement, values, lease=lease)

        if (
            rows
            or not events
            or current_lock_timeout() is not None
            or sum(map(len, columns["bodies"])) > TOGETHER
        ):
            alone(False)
        else:
            one = PendingAppend(line, first, **columns, lease=lease, at=at, epoch=epoch)
            self._group_commit.append(one, self._client.run, alone)

    def _columns(self, events: Sequence[EventRow]) -> dict[str, list[bytes]]:
        with self._compress_lock:
            bodies = [compress_body(event.body, self._zstd) for event in events]
        return {
            "heads": [event.head for event in events],
            "salts": [event.salt for event in events],
            "bodies": bodies,
        }

    def append_values(self, appends: Sequence[Append]) -> dict[str, Any]:
        """Return the parameters of several appends, concatenated. `ends` holds the end of each."""
        ends: list[int] = []
        for append in appends:
            check_consecutive(self, append.timeline, append.events)
            ends.append((ends[-1] if ends else 0) + len(append.events))
        return {
            "lines": [timeline_uuid(append.timeline) for append in appends],
            "firsts": [append.events[0].seq if append.events else 0 for append in appends],
            "ends": ends,
            **self._columns([event for append in appends for event in append.events]),
        }

    def events(
        self, timeline: str, after: int = 0, limit: int = 1000, *, newest: bool = False
    ) -> list[EventRow]:
        values = (timeline_uuid(timeline), after, min(check_limit(limit), MAX_BODY_BYTES))
        found = self._client.run(_NEWEST if newest else _EVENTS, values)
        if newest:
            found.reverse()
        zstd = self._zstd
        return [
            EventRow(seq, head, salt, decompress_body(body, zstd))
            for seq, head, salt, body in found
        ]

    def events_by_seq(self, timeline: str, seqs: Sequence[int]) -> list[EventRow]:
        found = self._client.run(_EVENTS_BY_SEQ, (timeline_uuid(timeline), list(seqs)))
        zstd = self._zstd
        return [
            EventRow(seq, head, salt, decompress_body(body, zstd))
            for seq, head, salt, body in found
        ]

    def last_seq(self, timeline: str) -> int:
        found = self._client.run(_LAST, (timeline_uuid(timeline),))
        if not found:
            raise errors.no_timeline(timeline)
        return int(found[0][0])

    def last_heads(self, timelines: Sequence[str]) -> list[bytes]:
        found = self._client.run(_LAST_HEADS, ([timeline_uuid(one) for one in timelines],))
        return [head or b"" for (head,) in found]

    def trim_events(self, timeline: str, upto: int) -> int:
        return int(self._client.run(_TRIM, (timeline_uuid(timeline), upto))[0][0])

    def erase_events(self, timeline: str, seqs: Sequence[int]) -> int:
        found = self._client.run(_ERASE, (timeline_uuid(timeline), list(seqs)))
        with self._compress_lock:
            self._zstd.clear_cache()
        with self._client.dedicated_connection() as connection:
            for part in sorted({part for (part,) in found}):
                # the old row version stays in its page until the table is rewritten
                connection.execute(sql.SQL("VACUUM (FULL) {}").format(sql.Identifier(part)))
        return len(found)

    def drop_timeline(self, timeline: str) -> None:
        self._client.run("SELECT drop_timeline(%s)", (timeline_uuid(timeline),))


def check_consecutive(catalog: Timelines, timeline: str, events: Sequence[EventRow]) -> None:
    """Raise Conflict unless the events are numbered consecutively.

    The database checks that the first one is the next of its timeline.
    """
    if events and [e.seq for e in events] != list(
        range(events[0].seq, events[0].seq + len(events))
    ):
        raise errors.seq_taken(timeline, events[0].seq, catalog.last_seq(timeline))


def timeline_uuid(id_: str) -> UUID:
    return UUID(bytes=raw_id(id_))


def _timeline(row: tuple[Any, ...]) -> Timeline:
    id_, parent, at = row
    return Timeline(id_.hex, parent.hex if parent else "", at)

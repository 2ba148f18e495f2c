"""A store as it is after many sessions: some are made by the product, and their rows are copied to
the others by COPY, with ids and names of their own. An event does not name its timeline, so that a
chain is as sound in another."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec
import psycopg
from psycopg import sql

import ortet
import session_text
from ortet._util.codec import decode, encode
from ortet.sessions.table import SessionRow

_HEAD = 11 + 4 + 4
"""Signature, flags and the length of an extension, before the rows of a binary COPY."""
_SIX = struct.pack("!h", 6)
_END = struct.pack("!h", -1)


class Model(msgspec.Struct, frozen=True):
    """A session that the product made: its row, how often that was changed, and its events as COPY
    has them, each without its timeline."""

    row: SessionRow
    version: int
    events: list[bytes]


def made(url: str, count: int, events: int) -> list[str]:
    """Names of sessions of so many events each, paused: their own beginning and end are two."""
    texts = session_text.messages(9)
    names = [f"agent-{number}" for number in range(count)]
    with ortet.open(url) as hub:
        for name in names:
            with hub.session(name) as session:
                session.say_all([("user", text) for text in islice(texts, events - 2)])
                session.pause()
    return names


def models(database: str, schema: str, names: Sequence[str]) -> list[Model]:
    with _connected(database, schema) as connection:
        found = []
        for name in names:
            query = """SELECT s.value, s.version FROM records s JOIN records n
                ON n.kind = 'session-name' AND s.key = convert_from(n.value, 'UTF8')
                WHERE s.kind = 'session' AND n.key = %s"""
            row = connection.execute(query, (f"default/{name}",)).fetchone()
            assert row is not None, name
            session = decode(SessionRow, row[0])
            found.append(Model(session, row[1], list(_events(connection, session.timeline))))
        return found


def _events(connection: psycopg.Connection, timeline: str) -> Iterator[bytes]:
    """Of each row, the fields behind the timeline with their lengths."""
    query = sql.SQL(
        "COPY (SELECT seq, made, head, salt, body FROM events WHERE timeline = {} ORDER BY seq) "
        "TO STDOUT (FORMAT binary)"
    ).format(UUID(timeline))
    with connection.cursor().copy(query) as copy:
        whole = b"".join(bytes(part) for part in copy)
    at = _HEAD
    while struct.unpack_from("!h", whole, at)[0] == 5:
        at += 2
        begin = at
        for _ in range(5):
            (size,) = struct.unpack_from("!i", whole, at)
            at += 4 + max(size, 0)
        yield whole[begin:at]


def fill(database: str, schema: str, models: Sequence[Model], count: int) -> float:
    """Seconds. The schema is there and holds none of these sessions."""
    rows = [_named(models[number % len(models)], number) for number in range(count)]
    begin = time.perf_counter()
    with _connected(database, schema) as connection:
        with connection.transaction(), connection.cursor() as cursor:
            with cursor.copy("COPY records FROM STDIN") as copy:
                for row, model in rows:
                    for record in _records(row, model.version):
                        copy.write_row(record)
            with cursor.copy("COPY timelines FROM STDIN") as copy:
                for row, model in rows:
                    copy.write_row((row.timeline, None, 0, len(model.events)))
            with cursor.copy("COPY events FROM STDIN (FORMAT binary)") as copy:
                copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
                for row, model in rows:
                    start = _SIX + struct.pack("!i", 16) + bytes.fromhex(row.timeline)
                    copy.write(b"".join(start + event for event in model.events))
                copy.write(_END)
        connection.execute("VACUUM (ANALYZE)")  # as the server would within a minute
        connection.execute("CHECKPOINT")
    return time.perf_counter() - begin


def name_of(number: int) -> str:
    return f"filled-{number}"


def _named(model: Model, number: int) -> tuple[SessionRow, Model]:
    id_, timeline, name = os.urandom(16).hex(), os.urandom(16).hex(), name_of(number)
    row = msgspec.structs.replace(
        model.row, id=id_, family=id_, name=name, branch=name, timeline=timeline
    )
    return row, model


def _records(row: SessionRow, version: int) -> Iterator[tuple[Any, ...]]:
    yield "session-name", f"{row.agent}/{row.name}", row.id.encode(), 1
    yield "session-branch", row.branch, row.id.encode(), 1
    yield "session", row.id, encode(row), version


def sizes(database: str, schema: str) -> dict[str, int]:
    """Bytes of the tables with their indexes; `events`: of all its partitions."""
    query = """SELECT CASE WHEN relname LIKE 'events\\_%%' THEN 'events' ELSE relname END,
        sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c
        JOIN pg_namespace n ON n.oid = relnamespace
        WHERE nspname = %s AND relkind = 'r' GROUP BY 1"""
    with _connected(database, schema) as connection:
        return dict(connection.execute(query, (schema,)).fetchall())


def _connected(database: str, schema: str) -> psycopg.Connection:
    return psycopg.connect(database, autocommit=True, options=f"-csearch_path={schema}")

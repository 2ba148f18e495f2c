"""Creates and migrates the schema of a PostgreSQL catalog.

A lock serialises processes that do so at the same time.
"""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

import psycopg
from psycopg import sql

from ortet.errors import Corrupt, Unsupported

MIGRATIONS = ("0001_ground.sql", "0002_verbs.sql", "0003_sweep.sql", "0004_search.sql")
"""The migrations in order. `ortet_format.version` is the number of those applied to a schema."""

SELECT_VERSION = "SELECT coalesce(max(version), 0) FROM ortet_format"
OLDEST = 140_000
"""PostgreSQL 14."""

_LOCK = "SELECT pg_advisory_xact_lock(1869771877, hashtext(%s || ' format'))"
# One statement per new connection checks and sets everything that must hold before its use.
_INSPECT_SCHEMA = """SELECT current_setting('server_encoding'),
    to_regclass(quote_ident(%(schema)s) || '.ortet_format') IS NOT NULL,
    to_regclass(quote_ident(%(schema)s) || '.' || quote_ident('events_' || to_char(
        now() AT TIME ZONE 'UTC' + interval '1 month', 'YYYYMM'))) IS NOT NULL,
    set_config('search_path', quote_ident(%(schema)s), false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)"""


class _SchemaState(NamedTuple):
    exists: bool
    has_next_partition: bool


def prepare_connection(
    connection: psycopg.Connection, schema: str, *, create: bool, place: str
) -> None:
    """Prepare a new connection. Create or migrate the schema if needed.

    Raises:
        Unsupported: If the schema was made by a newer program, or the server is unsuitable.
        Corrupt: "no_catalog" if there is no schema and `create` is false.
    """
    seen = _inspect_schema(connection, schema, place)
    if not seen.exists and not create:
        raise Corrupt(
            "no_catalog",
            f"{place} has no catalog of Ortet: restore it from a copy; the objects are still there",
        )
    if not seen.exists or _version(connection, place) < len(MIGRATIONS):
        _migrate(connection, schema, place)
        seen = _inspect_schema(connection, schema, place)
    if not seen.has_next_partition:
        connection.execute("SELECT ahead()")


def _inspect_schema(connection: psycopg.Connection, schema: str, place: str) -> _SchemaState:
    if connection.info.server_version < OLDEST:
        raise Unsupported(
            "old_postgres",
            f"{place} runs PostgreSQL {connection.info.server_version // 10_000}: Ortet needs "
            f"{OLDEST // 10_000} or newer",
        )
    row = connection.execute(_INSPECT_SCHEMA, {"schema": schema}).fetchone()
    assert row is not None
    if row[0] != "UTF8":
        raise Unsupported(
            "bad_encoding",
            f"{place} keeps text as {row[0]}: make a database with ENCODING 'UTF8'",
        )
    return _SchemaState(row[1], row[2])


def _migrate(connection: psycopg.Connection, schema: str, place: str) -> None:
    with connection.transaction():
        connection.execute(_LOCK, (schema,))
        # IF NOT EXISTS requires the right to create schemas even if this one exists
        row = connection.execute("SELECT to_regnamespace(quote_ident(%s))::text", (schema,))
        if row.fetchone() == (None,):
            make = sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))
            connection.execute(make)
        connection.execute("CREATE TABLE IF NOT EXISTS ortet_format (version int NOT NULL)")
        done = _version(connection, place)
        for name in MIGRATIONS[done:]:
            text = (files("ortet.backends.postgres") / "migrations" / name).read_bytes()
            connection.execute(text)
        if done < len(MIGRATIONS):
            connection.execute("DELETE FROM ortet_format")
            connection.execute("INSERT INTO ortet_format VALUES (%s)", (len(MIGRATIONS),))
            connection.execute("SELECT ahead()")


def _version(connection: psycopg.Connection, place: str) -> int:
    row = connection.execute(SELECT_VERSION).fetchone()
    return check_version(int(row[0]) if row else 0, place)


def check_version(version: int, place: str) -> int:
    """Return `version`. Raise Unsupported if this program does not know it."""
    if version > len(MIGRATIONS):
        raise Unsupported(
            "newer_format",
            f"{place} was written by a newer Ortet (format {version}, known here: "
            f"{len(MIGRATIONS)}): upgrade Ortet",
        )
    return version

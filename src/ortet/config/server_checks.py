"""Checks of `ortet doctor`: can a PostgreSQL database hold a store?

The checks only read; they create nothing. This module reads no environment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.config.open_shared_store import SharedStoreAddress
from ortet.errors import OrtetError
from ortet.machines.base import Capability

if TYPE_CHECKING:
    import psycopg

_TIMEOUT = 10
_QUERY_SAMPLES = 5
_SKEW = 60.0
"""Allowed clock difference in seconds.

Leases use the database clock, and the grace period of a sweep is an hour.
"""

_DATABASE_STATE_QUERY = """SELECT current_setting('server_version_num')::int AS version,
    current_setting('server_version') AS release,
    current_setting('server_encoding') AS encoding,
    extract(epoch FROM clock_timestamp())::float8 AS now,
    pg_is_in_recovery() AS standby,
    current_setting('fsync') AS fsync,
    current_setting('synchronous_commit') AS synchronous,
    current_setting('max_connections')::int
        - current_setting('superuser_reserved_connections')::int AS places,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::int AS taken,
    current_user::text AS who, current_database()::text AS base,
    to_regnamespace(quote_ident(%(schema)s)) IS NOT NULL AS made,
    CASE WHEN to_regnamespace(quote_ident(%(schema)s)) IS NULL
        THEN has_database_privilege(current_database(), 'CREATE')
        ELSE has_schema_privilege(%(schema)s, 'USAGE')
            AND has_schema_privilege(%(schema)s, 'CREATE') END AS may,
    coalesce((SELECT string_agg(relname, ', ' ORDER BY relname) FROM pg_class
        WHERE relnamespace = to_regnamespace(quote_ident(%(schema)s)) AND relkind IN ('r', 'p')
        AND NOT pg_has_role(relowner, 'USAGE')), '') AS others,
    coalesce((SELECT extversion FROM pg_extension WHERE extname = 'vector'), '') AS vector,
    EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector') AS vectors"""


class _DatabaseState(msgspec.Struct, frozen=True):
    version: int
    release: str
    encoding: str
    now: float
    standby: bool
    fsync: str
    synchronous: str
    places: int
    taken: int
    who: str
    base: str
    made: bool
    may: bool
    others: str
    vector: str
    vectors: bool


def examine_database(address: SharedStoreAddress) -> list[Capability]:
    """Return one result per requirement.

    If the database is unreachable, return only that result.
    """
    name = "postgresql"
    try:
        import psycopg
    except ImportError as error:
        what = f"psycopg cannot be used ({error})"
        return [Capability(name, False, what, 'pip install "ortet[postgres]"')]
    from ortet.backends.postgres.errors import BAD_OPTION_HINT, connection_hint

    try:
        with psycopg.connect(
            address.database, autocommit=True, connect_timeout=_TIMEOUT
        ) as connection:
            return list(_check_database(connection, address))
    except psycopg.Error as error:
        why = " ".join(str(error).split())
        misread = isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None
        fix = BAD_OPTION_HINT if misread else connection_hint(why)
        return [Capability(name, False, f"it cannot be used ({why})", fix)]


def _check_database(
    connection: psycopg.Connection, address: SharedStoreAddress
) -> Iterator[Capability]:
    from psycopg.rows import dict_row

    with connection.cursor(row_factory=dict_row) as cursor:
        began = time.time()
        row: dict[str, Any] | None = cursor.execute(
            _DATABASE_STATE_QUERY, {"schema": address.schema}
        ).fetchone()
        ours = (began + time.time()) / 2
    seen = msgspec.convert(row, thread_safe_struct(_DatabaseState))
    times, processes = [], set()
    for _ in range(_QUERY_SAMPLES):
        start = time.perf_counter()
        processes.add(connection.execute("SELECT pg_backend_pid()").fetchone())
        times.append(time.perf_counter() - start)
    yield _check_server(seen, min(times), is_single_backend=len(processes) == 1)
    yield _check_schema(address, seen)
    yield _check_privileges(address, seen)
    yield _check_clock(seen.now - ours)
    yield _check_connections(address, seen)
    yield _check_durability(seen)
    yield _check_pgvector(seen)


def _check_server(state: _DatabaseState, took: float, *, is_single_backend: bool) -> Capability:
    from ortet.backends.postgres.schema import OLDEST

    name, detail = "postgresql", f"{state.release}, {took * 1000:.1f} ms"
    if state.version < OLDEST:
        return Capability(name, False, detail, f"upgrade it to {OLDEST // 10_000} or newer")
    if state.encoding != "UTF8":
        fix = "make a database with ENCODING 'UTF8'"
        return Capability(name, False, f"{detail}, text as {state.encoding}", fix)
    if not is_single_backend:
        fix = "set pool_mode = session there, or go around it"
        return Capability(name, False, f"{detail}, a pooler that changes connections", fix)
    if state.standby:
        fix = "name the primary, or several hosts and target_session_attrs=read-write"
        return Capability(name, False, f"{detail}, a standby that takes no writes", fix)
    return Capability(name, True, detail)


def _check_schema(address: SharedStoreAddress, state: _DatabaseState) -> Capability:
    from ortet.backends.postgres.schema import MIGRATIONS
    from ortet.config.store_format import read_format_at

    name, newest = "schema", len(MIGRATIONS)
    try:
        found = read_format_at(address) if state.made else 0
    except OrtetError as error:
        return Capability(name, False, str(error), "see the line about rights")
    if found == 0:
        return Capability(name, True, f"{address.schema}: no store yet, `ortet init` makes one")
    detail = f"{address.schema}, format {found}"
    if found < newest:
        fix = "back up, then run `ortet migrate`: who opens it first does the same"
        return Capability(name, False, f"{detail}, this release has {newest}", fix)
    if found > newest:
        return Capability(name, False, f"{detail}, known here: {newest}", "upgrade ortet")
    return Capability(name, True, detail)


def _check_privileges(address: SharedStoreAddress, state: _DatabaseState) -> Capability:
    name = "rights"
    if not state.may and not state.made:
        fix = f'GRANT CREATE ON DATABASE "{state.base}" TO "{state.who}"'
        return Capability(name, False, f"{state.who} may make no schema there", fix)
    if not state.may:
        fix = f'GRANT ALL ON SCHEMA "{address.schema}" TO "{state.who}"'
        return Capability(name, False, f"{state.who} may not use schema {address.schema}", fix)
    if state.others:
        what = f"tables of another user: {state.others}"
        fix = f'connect as their owner, or as one who has its role: GRANT owner TO "{state.who}"'
        return Capability(name, False, what, fix)
    return Capability(name, True, f"{state.who} may read, write, and make tables")


def _check_clock(ahead: float) -> Capability:
    detail = f"the database's is {abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}"
    if abs(ahead) < _SKEW:
        return Capability("clock", True, detail)
    return Capability("clock", False, detail, "set the clocks by NTP: sessions show wrong times")


def _check_connections(address: SharedStoreAddress, state: _DatabaseState) -> Capability:
    free = state.places - state.taken
    detail = f"{state.taken} of {state.places} in use, a process here opens {address.connections}"
    if free >= address.connections:
        return Capability("connections", True, detail)
    fix = "raise max_connections, lower connections= in the address, or put a pooler in session "
    return Capability("connections", False, detail, f"{fix}mode in front")


def _check_durability(state: _DatabaseState) -> Capability:
    if state.fsync != "on":
        what = "fsync is off: what was acknowledged is lost with the power"
        return Capability("durable", False, what, "set fsync = on, unless it is for tests")
    return Capability("durable", True, f"fsync on, synchronous_commit {state.synchronous}")


def _check_pgvector(state: _DatabaseState) -> Capability:
    name = "pgvector"
    if state.vector:
        return Capability(name, True, state.vector)
    what = "not there: meanings are compared on each host"
    if state.vectors:
        return Capability(
            name, False, what, f'as a superuser in "{state.base}": CREATE EXTENSION vector'
        )
    return Capability(name, False, what, "install pgvector at the server, then CREATE EXTENSION")

"""Checks of `ortet doctor`: can a PostgreSQL database hold a store?

The checks only read; they create nothing. This module reads no environment.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.backends.object_storage.url import BUCKET_SCHEMES
from ortet.config.open_shared_store import SharedStoreAddress, parse_shared_url
from ortet.config.open_store import is_remote, parse_remote_url, read_token_file
from ortet.errors import Conflict, NotFound, OrtetError
from ortet.machines.base import Capability

if TYPE_CHECKING:
    import psycopg

    from ortet.backends.base import Bucket


# Checks of `ortet doctor`: can this host use the servers of a remote or shared store?
#
# Each server is tried with real requests. No store is created. This module reads no environment.

PROBE_PREFIX = "doctor/"
"""The prefix for test objects in a bucket. No object of a store has it."""

_MIN_CACHE_BYTES = 4 << 30
"""Space for cached objects of a store, and as much again for objects waiting to be uploaded."""
_PROBE_TIMEOUT_SECONDS = 5.0
_SIGNAL_DOWN_HINT = (
    "start it, or leave it out of the address; meanwhile hosts look for news once a second"
)
_PING_SAMPLES = 3


def examine_servers(url: str, *, cache: Path, token: str = "") -> list[Capability]:
    """Return one check result for each thing that a store at this URL needs."""
    if is_remote(url):
        return [_check_remote_server(url, token), _check_cache(cache)]

    address = parse_shared_url(url)
    database = examine_database(address)
    database.append(
        _run_check("bucket", lambda: _check_bucket(address.bucket), "see the address after bucket=")
    )
    for name, valkey in (("valkey", address.signal), ("valkey cache", address.cache)):
        if valkey:
            database.append(
                _run_check(name, partial(_check_valkey, name, valkey), _SIGNAL_DOWN_HINT)
            )
    if not address.signal:
        what = "none, and none is needed: the database wakes hosts, and they share no cache"
        database.append(Capability("valkey", True, what))
    return [*database, _check_cache(cache)]


def _run_check(name: str, check: Callable[[], Capability], fix: str) -> Capability:
    """Run one check and turn its error into a failed result.

    The messages of our errors have the form "problem: remedy".
    """
    try:
        return check()
    except OrtetError as error:
        what, _, todo = str(error).rpartition(": ")
        return Capability(name, False, what or str(error), todo if what else fix)
    except OSError as error:
        return Capability(name, False, str(error), fix)


def _check_bucket(url: str) -> Capability:
    """Check a bucket. Its server must support exclusive create.

    Exclusive create prevents two hosts from writing the same pack.
    """
    if not url.startswith(tuple(f"{scheme}://" for scheme in BUCKET_SCHEMES)):
        path = Path(unquote(urlsplit(url).path))
        if url.startswith("file:///") and not path.is_dir():
            what = f"{path} is not there yet: it is made with the store"
            return Capability("bucket", True, what)
        from ortet.backends.buckets import open_bucket

        return _probe_bucket(open_bucket(url), str(path))
    from ortet.backends.object_storage.bucket import S3Bucket

    bucket = S3Bucket(
        url, retry_seconds=_PROBE_TIMEOUT_SECONDS, read_timeout=_PROBE_TIMEOUT_SECONDS
    )
    return _probe_bucket(bucket, str(bucket.address))


def _probe_bucket(bucket: Bucket, where: str) -> Capability:
    key, data = f"{PROBE_PREFIX}{os.urandom(8).hex()}", os.urandom(64)
    began = time.perf_counter()
    bucket.put(key, data)
    took = time.perf_counter() - began
    try:
        try:
            bucket.put(key, os.urandom(64))
        except Conflict:
            pass
        else:
            fix = "use one that knows If-None-Match, as S3 does, or a newer release of it"
            what = f"{where} lets one host write over what another has put"
            return Capability("bucket", False, what, fix)
        if bucket.get(key, 8, 16) != data[8:24]:
            return Capability("bucket", False, f"{where} gives wrong ranges", "use another server")
        if key not in {found.key for found in bucket.list(PROBE_PREFIX)}:
            return Capability("bucket", False, f"{where} does not list what it has", "allow List")
    finally:
        bucket.delete([key])
    try:
        bucket.size(key)
    except NotFound:
        return Capability("bucket", True, f"{where}, a put takes {took * 1000:.0f} ms")
    finally:
        bucket.close()
    return Capability("bucket", False, f"{where} does not delete", "allow Delete: a sweep needs it")


def _check_valkey(name: str, url: str) -> Capability:
    from ortet.backends.valkey.address import parse_valkey_url as parsed
    from ortet.backends.valkey.client import ValkeyClient

    link = ValkeyClient(parsed(url), answer_timeout=_PROBE_TIMEOUT_SECONDS)
    link.check_login()  # raises a clear error if the login is refused
    connection = link.connect(_PROBE_TIMEOUT_SECONDS)
    try:
        info = _fields(connection.call("INFO", "server")) | _fields(
            connection.call("INFO", "memory")
        )
        times = []
        for _ in range(_PING_SAMPLES):
            began = time.perf_counter()
            connection.call("PING")
            times.append(time.perf_counter() - began)
    except link.connection_errors as error:
        why = " ".join(str(error).split())
        return Capability(name, False, f"{link.address} does not answer ({why})", _SIGNAL_DOWN_HINT)
    finally:
        connection.close()
    version = info.get("valkey_version") or info.get("redis_version", "?")
    detail = f"{version}, {min(times) * 1000:.1f} ms"
    if info.get("maxmemory", "0") == "0":
        detail += ", no limit of its memory"
    return Capability(name, True, detail)


def _fields(info: Any) -> dict[str, str]:
    pairs = (connection.partition(":") for connection in info.decode().splitlines())
    return {name: value.strip() for name, mark, value in pairs if mark}


def _check_cache(directory: Path) -> Capability:
    """Check the cache directory: it is writable and has enough space.

    It holds the objects read by this host, and with durable=local those not uploaded yet.
    """
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        fix = "set XDG_CACHE_HOME to a directory that you may write"
        return Capability("cache", False, f"{directory} cannot be written", fix)
    free = shutil.disk_usage(existing).free
    detail = f"{directory}, {free / (1 << 30):.1f} GiB free"
    if free < _MIN_CACHE_BYTES:
        fix = f"give it {_MIN_CACHE_BYTES >> 30} GiB, or set XDG_CACHE_HOME to a larger disk"
        return Capability("cache", False, detail, fix)
    return Capability("cache", True, detail)


def _check_remote_server(url: str, token: str) -> Capability:
    def look() -> Capability:
        from ortet.backends.remote.catalog import HttpCatalog
        from ortet.backends.remote.client import RemoteClient
        from ortet.ids import SystemClock

        address, options = parse_remote_url(url)
        link = RemoteClient(address, token=read_token_file(options.get("token_file")) or token)
        catalog = HttpCatalog(link, SystemClock(), random=os.urandom)
        try:
            began = time.perf_counter()
            hello = catalog.hello()
            took = time.perf_counter() - began
        finally:
            catalog.close()
        return Capability("server", True, f"format {hello.format}, {took * 1000:.0f} ms")

    return _run_check("server", look, "check that `ortet serve` runs there")


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
        version = read_format_at(address) if state.made else 0
    except OrtetError as error:
        return Capability(name, False, str(error), "see the line about rights")
    if version == 0:
        return Capability(name, True, f"{address.schema}: no store yet, `ortet init` makes one")
    detail = f"{address.schema}, format {version}"
    if version < newest:
        fix = "back up, then run `ortet migrate`: who opens it first does the same"
        return Capability(name, False, f"{detail}, this release has {newest}", fix)
    if version > newest:
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

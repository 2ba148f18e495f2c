"""The connections of one process to a PostgreSQL schema, shared by all its users.

Connections are prepared before use, limited in number, and never used across a fork.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Lock, RLock
from weakref import WeakValueDictionary

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from ortet._util.fork_safety import close_at_fork
from ortet._util.lock_timeout import current_lock_timeout
from ortet.backends.postgres.errors import (
    BAD_OPTION_HINT,
    connections_exhausted,
    database_gone,
    is_lost,
    translate_postgres_error,
)
from ortet.backends.postgres.schema import prepare_connection
from ortet.backends.postgres.stall_detection import (
    MonitoredConnection,
    ServerStalled,
    StallDetector,
    connect_monitored,
)
from ortet.errors import Corrupt, Invalid, OrtetError, Unavailable

DEFAULT_WAIT_SECONDS = 30.0
_DIAGNOSE_AFTER_SECONDS = 2.0
"""Seconds without a free connection after which the cause is diagnosed."""
_IDLE = 60.0
"""Seconds after which an unused connection is closed."""
_DEFAULTS = {
    "application_name": "ortet",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "tcp_user_timeout": "30000",  # milliseconds: a host that is gone does not close its connections
}

# Errors are reported by the calls. The log messages of the pool are shown only on request.
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())


class PostgresDatabase(msgspec.Struct, frozen=True):
    """A schema and its connection parameters; `place` is its name in messages."""

    conninfo: str
    schema: str
    place: str
    connections: int
    wait: float


def parse_database_url(
    url: str, *, schema: str, connections: int, wait: float = DEFAULT_WAIT_SECONDS
) -> PostgresDatabase:
    """Parse a libpq URL and add default options. Raise Invalid("bad_url")."""
    try:
        options = {key: str(value) for key, value in conninfo_to_dict(url).items()}
        conninfo = make_conninfo("", **{**_DEFAULTS, **options})
    except psycopg.Error as error:
        why = " ".join(str(error).split())
        raise Invalid(
            "bad_url", f"this is no address of a database ({why}): {BAD_OPTION_HINT}"
        ) from error
    host, port = options.get("host", "localhost"), options.get("port", "5432")
    name = options.get("dbname") or options.get("user") or ""  # without the password
    place = f"postgresql://{host}:{port}/{name} ({schema})"
    return PostgresDatabase(conninfo, schema, place, connections, wait)


class PostgresPool:
    """The connections of one process to one database; see `shared_pool`.

    Statements run in autocommit mode. Each one is a transaction, so a process that dies leaves no
    transaction open.
    """

    def __init__(self, database: PostgresDatabase) -> None:
        self.database = database
        self._user_count = 0
        self._active_count = 0
        self._condition = Condition()
        self._forking = self._closed = self._is_prepared = False
        self._pool: ConnectionPool[MonitoredConnection] | None = None
        self._stall_detector = StallDetector(database.conninfo, database.wait)
        self._diagnose_lock = Lock()
        self._last_diagnosis: tuple[float, OrtetError] | None = None
        close_at_fork(self)

    def add_user(self) -> bool:
        """Register a user, which ends with `remove_user`.

        Return False if the pool is already closed.
        """
        with self._condition:
            self._user_count += not self._closed
            return not self._closed

    def remove_user(self) -> None:
        """End one use of the pool. The last one closes all connections."""
        with self._condition:
            self._user_count -= 1
            if self._user_count <= 0:
                self._closed = True
                self._drop()

    def check_schema(self, *, create: bool) -> None:
        """Check that the schema exists, is ours and is up to date.

        Create it if `create` is true.
        """
        if self._is_prepared:
            try:
                with self.borrow() as connection:
                    self._prepare(connection, create=create)
                    return
            except psycopg.Error as error:
                if not is_lost(error):
                    raise translate_postgres_error(error, self.database.place) from error
                self.discard_stale(error)
            # raised while a new connection was prepared, which creates no schema
            except Corrupt as error:
                if not create:
                    raise error from None
        with self._connect(create=create):
            self._is_prepared = True

    @contextmanager
    def borrow(self) -> Iterator[psycopg.Connection]:
        """Yield a connection, waiting for a free one. Raise Unavailable on timeout."""
        pool = self._enter()
        try:
            connection = self._get_connection(pool)
            try:
                yield connection
            finally:
                pool.putconn(connection)
        finally:
            self._leave()

    @contextmanager
    def dedicated_connection(self) -> Iterator[psycopg.Connection]:
        """Yield a connection outside of the pool, for long work."""
        self._enter()
        try:
            with self._connect(create=False) as connection:
                yield connection
        finally:
            self._leave()

    def discard_stale(self, error: psycopg.Error) -> None:
        """Check the other connections after one was lost.

        If the server has stalled, they are closed without a check.
        """
        pool = self._pool
        if pool is not None and not pool.closed:
            if isinstance(error, ServerStalled):
                pool.drain()
            else:
                pool.check()

    def _get_connection(self, pool: ConnectionPool[MonitoredConnection]) -> MonitoredConnection:
        longest, patience = self.database.wait, current_lock_timeout()
        wait = longest if patience is None else min(longest, patience.seconds)
        end = time.monotonic() + wait
        while True:
            try:
                return pool.getconn(max(0.0, min(_DIAGNOSE_AFTER_SECONDS, end - time.monotonic())))
            except (PoolTimeout, PoolClosed) as error:
                why = self._diagnose()
                if time.monotonic() >= end or not isinstance(why, Unavailable):
                    if patience is not None:
                        patience.expire()
                    raise why from error

    def _diagnose(self) -> OrtetError:
        """Return the reason why no connection is available.

        The database may be gone or inaccessible, or all connections are in use. One thread checks
        for all that wait; otherwise each would need another connection.
        """
        with self._diagnose_lock:
            if (
                self._last_diagnosis is not None
                and time.monotonic() - self._last_diagnosis[0] < _DIAGNOSE_AFTER_SECONDS
            ):
                return self._last_diagnosis[1]
            why: OrtetError
            try:
                with self._connect(create=False):
                    why = connections_exhausted(self.database.place, self.database.connections)
            except OrtetError as error:
                why = error
            self._last_diagnosis = time.monotonic(), why
            return why

    @contextmanager
    def _connect(self, *, create: bool) -> Iterator[psycopg.Connection]:
        """Yield a new connection for the duration of the block."""
        place = self.database.place
        try:
            with connect_monitored(self.database.conninfo, self._stall_detector) as connection:
                self._prepare(connection, create=create)
                yield connection
        except psycopg.OperationalError as error:
            raise database_gone(place, error) from error
        except psycopg.Error as error:
            raise translate_postgres_error(error, place) from error

    def _configure(self, connection: MonitoredConnection) -> None:
        connection.detector = self._stall_detector
        self._prepare(connection, create=False)

    def _prepare(self, connection: psycopg.Connection, *, create: bool) -> None:
        prepare_connection(
            connection, self.database.schema, create=create, place=self.database.place
        )

    def _enter(self) -> ConnectionPool[MonitoredConnection]:
        with self._condition:
            while self._forking:
                self._condition.wait()
            if self._closed:
                raise catalog_closed()
            if self._pool is None:
                self._pool = self._fill()
            self._active_count += 1
            return self._pool

    def _leave(self) -> None:
        with self._condition:
            self._active_count -= 1
            self._condition.notify_all()

    def _fill(self) -> ConnectionPool[MonitoredConnection]:
        database = self.database
        return ConnectionPool(
            database.conninfo,
            connection_class=MonitoredConnection,
            kwargs={"autocommit": True},
            min_size=0,
            max_size=database.connections,
            max_waiting=0,
            max_idle=_IDLE,
            num_workers=1,
            open=True,
            # callers that still wait start a new attempt, without growing pauses
            reconnect_timeout=_DIAGNOSE_AFTER_SECONDS,
            configure=self._configure,
        )

    def _drop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def before_fork(self) -> None:
        """Wait for statements of other threads, then close all connections.

        If the child inherited the sockets, the server would not notice the end of the parent.
        """
        with self._condition:
            while self._forking:
                self._condition.wait()
            self._forking = True
            while self._active_count:
                self._condition.wait()
            self._drop()
        self._condition.acquire()

    def after_fork(self) -> None:
        self._forking = False
        self._condition.notify_all()
        self._condition.release()


def catalog_closed() -> Invalid:
    """Return the error for the use of a closed catalog."""
    return Invalid("closed", "the catalog was closed: open the store again")


_POOLS: WeakValueDictionary[PostgresDatabase, PostgresPool] = WeakValueDictionary()
"""The pools of this process.

A server opens a hub per session, and a database allows few connections.
"""
_lock = RLock()


def shared_pool(database: PostgresDatabase) -> PostgresPool:
    """Return the pool that this process shares for `database`. Each caller calls `remove_user`."""
    with _lock:
        pool = _POOLS.get(database)
        if pool is None or not pool.add_user():
            pool = _POOLS[database] = PostgresPool(database)
            pool.add_user()
        return pool


def _reset_in_child() -> None:
    """Replace the lock in a forked child: a thread of the parent may have held it.

    The pools have no connections after a fork, and open new ones.
    """
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_reset_in_child)

"""Connections of one process to a PostgreSQL database: all who use the same schema share them. Made
ready, no more than allowed, never across a fork."""

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

from ortet._util.deadlines import ours
from ortet._util.fork_safety import close_at_fork
from ortet.backends.postgres.errors import ENCODED, exhausted, gone, is_lost, translated
from ortet.backends.postgres.schema import prepare
from ortet.backends.postgres.stall_detection import Still, Watch, Watched, connected
from ortet.errors import Corrupt, Invalid, OrtetError, Unavailable

WAIT = 30.0
_LOOK = 2.0
"""Seconds without a connection after which to ask why."""
_IDLE = 60.0
"""Seconds after which a connection is closed that nobody needs."""
_DEFAULTS = {
    "application_name": "ortet",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "tcp_user_timeout": "30000",  # milliseconds: a server whose host is gone never says so
}

# Calls say what becomes of them; unless somebody asks for it, the pool's own words are not shown.
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())


class Database(msgspec.Struct, frozen=True):
    """A schema, and how it is connected to; `place` is for messages."""

    conninfo: str
    schema: str
    place: str
    connections: int
    wait: float


def database_of(url: str, *, schema: str, connections: int, wait: float = WAIT) -> Database:
    try:
        given = {key: str(value) for key, value in conninfo_to_dict(url).items()}
        conninfo = make_conninfo("", **{**_DEFAULTS, **given})
    except psycopg.Error as error:
        why = " ".join(str(error).split())
        raise Invalid("bad_url", f"this is no address of a database ({why}): {ENCODED}") from error
    host, port = given.get("host", "localhost"), given.get("port", "5432")
    name = given.get("dbname") or given.get("user") or ""  # and no password
    place = f"postgresql://{host}:{port}/{name} ({schema})"
    return Database(conninfo, schema, place, connections, wait)


class Pool:
    """Of one process and database: see `joined`. Statements run in autocommit: each is a
    transaction, so a process that dies leaves nothing open."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._joined = 0
        self._users = 0
        self._idle = Condition()
        self._forking = self._closed = self._was_there = False
        self._pool: ConnectionPool[Watched] | None = None
        self._watch = Watch(database.conninfo, database.wait)
        self._asking = Lock()
        self._told: tuple[float, OrtetError] | None = None
        close_at_fork(self)

    def join(self) -> bool:
        """One more uses it, until `leave`; False when the last one just has left."""
        with self._idle:
            self._joined += not self._closed
            return not self._closed

    def leave(self) -> None:
        with self._idle:
            self._joined -= 1
            if self._joined <= 0:
                self._closed = True
                self._drop()

    def ready(self, *, create: bool) -> None:
        """That the schema is there, is ours and is up to date, or why not; `create` makes it."""
        if self._was_there:
            try:
                with self.lent() as connection:
                    self._prepare(connection, create=create)
                    return
            except psycopg.Error as error:
                if not is_lost(error):
                    raise translated(error, self.database.place) from error
                self.distrust(error)
            except Corrupt as error:  # by a new connection, which makes no schema
                if not create:
                    raise error from None
        with self._connected(create=create):
            self._was_there = True

    @contextmanager
    def lent(self) -> Iterator[psycopg.Connection]:
        """A connection, which is waited for. Unavailable when none comes in time."""
        pool = self._enter()
        try:
            connection = self._taken(pool)
            try:
                yield connection
            finally:
                pool.putconn(connection)
        finally:
            self._leave()

    @contextmanager
    def own(self) -> Iterator[psycopg.Connection]:
        """A connection that nobody else gets, for what takes long."""
        self._enter()
        try:
            with self._connected(create=False) as connection:
                yield connection
        finally:
            self._leave()

    def distrust(self, error: psycopg.Error) -> None:
        """One connection was lost: others may be. Those of a server that stands still are given up
        unasked."""
        pool = self._pool
        if pool is not None and not pool.closed:
            if isinstance(error, Still):
                pool.drain()
            else:
                pool.check()

    # inside

    def _taken(self, pool: ConnectionPool[Watched]) -> Watched:
        longest, patience = self.database.wait, ours()
        wait = longest if patience is None else min(longest, patience.seconds)
        end = time.monotonic() + wait
        while True:
            try:
                return pool.getconn(max(0.0, min(_LOOK, end - time.monotonic())))
            except (PoolTimeout, PoolClosed) as error:
                why = self._why()
                if time.monotonic() >= end or not isinstance(why, Unavailable):
                    if patience is not None:
                        patience.lose()
                    raise why from error

    def _why(self) -> OrtetError:
        """No connection came: is the database gone, or not ours any more, or are all in use? One
        asks for all who wait, or they would need as many connections more."""
        with self._asking:
            if self._told is not None and time.monotonic() - self._told[0] < _LOOK:
                return self._told[1]
            why: OrtetError
            try:
                with self._connected(create=False):
                    why = exhausted(self.database.place, self.database.connections)
            except OrtetError as error:
                why = error
            self._told = time.monotonic(), why
            return why

    @contextmanager
    def _connected(self, *, create: bool) -> Iterator[psycopg.Connection]:
        """One of its own, for the time of the block."""
        place = self.database.place
        try:
            with connected(self.database.conninfo, self._watch) as connection:
                self._prepare(connection, create=create)
                yield connection
        except psycopg.OperationalError as error:
            raise gone(place, error) from error
        except psycopg.Error as error:
            raise translated(error, place) from error

    def _configure(self, connection: Watched) -> None:
        connection.watch = self._watch
        self._prepare(connection, create=False)

    def _prepare(self, connection: psycopg.Connection, *, create: bool) -> None:
        prepare(connection, self.database.schema, create=create, place=self.database.place)

    def _enter(self) -> ConnectionPool[Watched]:
        with self._idle:
            while self._forking:
                self._idle.wait()
            if self._closed:
                raise closed()
            if self._pool is None:
                self._pool = self._fill()
            self._users += 1
            return self._pool

    def _leave(self) -> None:
        with self._idle:
            self._users -= 1
            self._idle.notify_all()

    def _fill(self) -> ConnectionPool[Watched]:
        database = self.database
        return ConnectionPool(
            database.conninfo,
            connection_class=Watched,
            kwargs={"autocommit": True},
            min_size=0,
            max_size=database.connections,
            max_waiting=0,
            max_idle=_IDLE,
            num_workers=1,
            open=True,
            reconnect_timeout=_LOOK,  # who still waits has it begin anew, without longer pauses
            configure=self._configure,
        )

    def _drop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def before_fork(self) -> None:
        """Waits for other threads' statements: a child that held their sockets would keep the
        server from seeing the end of its parent."""
        with self._idle:
            while self._forking:
                self._idle.wait()
            self._forking = True
            while self._users:
                self._idle.wait()
            self._drop()
        self._idle.acquire()

    def after_fork(self) -> None:
        self._forking = False
        self._idle.notify_all()
        self._idle.release()


def closed() -> Invalid:
    return Invalid("closed", "the catalog was closed: open the store again")


_POOLS: WeakValueDictionary[Database, Pool] = WeakValueDictionary()
"""Of this process: a server opens a hub for each session, and a database allows few connections."""
_lock = RLock()


def joined(database: Database) -> Pool:
    """The one that all of this process share; each who joins it leaves it."""
    with _lock:
        found = _POOLS.get(database)
        if found is None or not found.join():
            found = _POOLS[database] = Pool(database)
            found.join()
        return found


def _anew() -> None:
    """In a child: another thread of its parent may have had the lock. A pool has no connections
    then, and makes its own."""
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_anew)

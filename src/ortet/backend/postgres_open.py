"""Connections to a PostgreSQL database: pooled, made ready, never across a fork; and the one place
where a statement is tried again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Condition
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from ortet.backend.abc import Lease
from ortet.backend.atfork import close_at_fork
from ortet.backend.patience import ours
from ortet.backend.postgres_errors import (
    NO_PARTITION,
    exhausted,
    gone,
    is_collision,
    is_lost,
    translated,
)
from ortet.backend.postgres_schema import prepare
from ortet.errors import Invalid, OrtetError, Unavailable

Values = Sequence[Any] | dict[str, Any]

_TRIES = 8
"""Of one statement, when others are in its way or the connection is lost."""
_PAUSE = 0.01
_WAIT = 30.0
_LOOK = 2.0
"""Seconds without a connection after which to ask why."""
_DEFAULTS = {
    "application_name": "ortet",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "tcp_user_timeout": "30000",  # milliseconds: a server whose host is gone never says so
}


class Link:
    """A database as a catalog sees it. Statements run in autocommit: each is a transaction, so a
    process that dies leaves nothing open."""

    def __init__(
        self, url: str, *, schema: str, create: bool, connections: int, wait: float = _WAIT
    ) -> None:
        try:
            given = {key: str(value) for key, value in conninfo_to_dict(url).items()}
            self._conninfo = make_conninfo("", **{**_DEFAULTS, **given})
        except psycopg.Error as error:
            raise Invalid("bad_url", f"this is no address of a database ({error})") from error
        self.schema = schema
        self.place = _place(given, schema)
        self._most = connections
        self._longest = wait
        self._users = 0
        self._idle = Condition()
        self._forking = self._closed = False
        self._pool: ConnectionPool | None = None
        with self._connected(create=create):
            pass
        close_at_fork(self)

    # statements

    def run(
        self, statement: str, values: Values = (), *, lease: Lease | None = None
    ) -> list[tuple[Any, ...]]:
        """All rows. Tried again after a collision, and when the connection was lost: what must not
        be done twice has to know it by itself; `doubt` among the values is set then."""
        for attempt in range(_TRIES):
            try:
                with self._lent() as connection:
                    cursor = connection.execute(statement, values, prepare=True, binary=True)
                    return cursor.fetchall() if cursor.description else []
            except psycopg.Error as error:
                last = attempt == _TRIES - 1
                if error.sqlstate == NO_PARTITION and not last:
                    self.run("SELECT ahead()")
                elif last or not (is_lost(error) or is_collision(error)):
                    raise translated(error, self.place, lease) from error
                elif is_lost(error):
                    if isinstance(values, dict):
                        values = {**values, "doubt": True}
                    self._distrust()
            except (ValueError, OverflowError) as error:
                raise Invalid("bad_value", f"PostgreSQL cannot keep this ({error})") from error
            time.sleep(random.uniform(0.5, 1.5) * _PAUSE * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def _lent(self) -> Iterator[psycopg.Connection]:
        pool = self._enter()
        try:
            connection = self._taken(pool)
            try:
                yield connection
            finally:
                pool.putconn(connection)
        finally:
            self._leave()

    def _taken(self, pool: ConnectionPool) -> psycopg.Connection:
        patience = ours()
        wait = self._longest if patience is None else min(self._longest, patience.seconds)
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
        """No connection came: is the database gone, or not ours any more, or are all in use?"""
        try:
            with self._connected(create=False):
                return exhausted(self.place, self._most)
        except OrtetError as error:
            return error

    @contextmanager
    def _connected(self, *, create: bool) -> Iterator[psycopg.Connection]:
        """One of its own, for the time of the block."""
        try:
            connection = psycopg.connect(self._conninfo, autocommit=True)
            with connection:
                prepare(connection, self.schema, create=create, place=self.place)
                yield connection
        except psycopg.OperationalError as error:
            raise gone(self.place, error) from error
        except psycopg.Error as error:
            raise translated(error, self.place) from error

    @contextmanager
    def own(self) -> Iterator[psycopg.Connection]:
        """A connection that nobody else gets, for what takes long."""
        self._enter()
        try:
            with self._connected(create=False) as connection:
                yield connection
        finally:
            self._leave()

    def _distrust(self) -> None:
        pool = self._pool
        if pool is not None and not pool.closed:
            pool.check()

    # the pool

    def _enter(self) -> ConnectionPool:
        with self._idle:
            while self._forking:
                self._idle.wait()
            if self._closed:
                raise Invalid("closed", "the catalog was closed: open the store again")
            if self._pool is None:
                self._pool = self._fill()
            self._users += 1
            return self._pool

    def _leave(self) -> None:
        with self._idle:
            self._users -= 1
            self._idle.notify_all()

    def _fill(self) -> ConnectionPool:
        return ConnectionPool(
            self._conninfo,
            kwargs={"autocommit": True},
            min_size=0,
            max_size=self._most,
            max_waiting=0,
            num_workers=1,
            open=True,
            reconnect_timeout=self._longest,
            configure=partial(prepare, schema=self.schema, create=False, place=self.place),
        )

    def close(self) -> None:
        with self._idle:
            self._closed = True
            self._drop()

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


def _place(given: dict[str, str], schema: str) -> str:
    """For messages: no password."""
    host, port = given.get("host", "localhost"), given.get("port", "5432")
    name = given.get("dbname") or given.get("user") or ""
    return f"postgresql://{host}:{port}/{name} ({schema})"

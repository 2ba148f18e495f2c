"""Signal through a catalog's own PostgreSQL (LISTEN and NOTIFY), where there is no Valkey. A whole
process hears on one connection, and tells on those that its catalogs use."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from functools import cache

import msgspec
import psycopg
from psycopg import sql

from ortet._util.deadlines import patient
from ortet.backends.postgres.pool import Database, Pool, joined
from ortet.backends.postgres.stall_detection import Watch, connected
from ortet.backends.pubsub import Hearer, PostSignal, Speaker
from ortet.errors import OrtetError

_QUIET = 5.0
"""Seconds of silence after which it is asked whether it is there."""
_ANSWER = 3.0
_REACH = 2.0
"""Seconds in which the server must be reached: nobody depends on it."""
_PACE = 0.01
"""Seconds between two tellings: each is a transaction, and all of one database are in a row."""
_LONGEST = 7000
"""Bytes of a topic: PostgreSQL carries fewer than 8000. A longer one is told as any."""
# A transaction that notifies is written to the log, and need not be waited for.
_TELL = """SELECT set_config('synchronous_commit', 'off', true)
    UNION ALL SELECT pg_notify(%s, told)::text FROM unnest(%s::text[]) AS told"""


class PostgresSignal(PostSignal):
    """One channel a store: what is told in it is a topic and who tells."""

    def __init__(self, database: Database, space: str) -> None:
        super().__init__(_Postgres(database, f"ortet_{space}"))


class _Postgres(msgspec.Struct, frozen=True):
    database: Database
    channel: str

    name = "postgres"
    narrows = False
    is_deaf = True
    pace = _PACE

    @property
    def troubles(self) -> tuple[type[Exception], ...]:
        return (psycopg.Error, OrtetError, OSError)

    def speaker(self) -> Speaker:
        return _Speaker(joined(self.database), self.channel)

    def hearer(self, prefix: str) -> Hearer:  # noqa: ARG002 - it hears all
        conninfo = self.database.conninfo
        connection = connected(conninfo, Watch(conninfo, _REACH), connect_timeout=int(_REACH))
        try:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.channel)))
            return _Hearer(connection)
        except BaseException:
            connection.close()
            raise


class _Speaker:
    def __init__(self, pool: Pool, channel: str) -> None:
        self._pool = pool
        self._channel = channel

    def tell(self, topics: list[str]) -> None:
        told = [topic if len(topic.encode()) <= _LONGEST else "" for topic in topics]
        values = (self._channel, [f"{_who()} {topic}" for topic in told])
        try:
            with patient(_REACH), self._pool.lent() as connection:
                connection.execute(_TELL, values, prepare=True)
        except psycopg.Error as error:
            self._pool.distrust(error)
            raise

    def close(self) -> None:
        self._pool.leave()


class _Hearer:
    """Reads the connection itself, so that another thread can wake it."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._poll.register(self._event, select.POLLIN)

    def heard(self) -> list[str] | None:
        found = self._read()
        if not found and not self._poll.poll(_QUIET * 1000):
            self._ask()
        found += self._read()
        ours = f"{_who()} "
        topics = [told.partition(" ")[2] for told in found if not told.startswith(ours)]
        return None if "" in topics else topics

    def _read(self) -> list[str]:
        pgconn = self._connection.pgconn
        pgconn.consume_input()
        found = []
        while (told := pgconn.notifies()) is not None:
            found.append(told.extra.decode("utf-8", "replace"))
        return found

    def _ask(self) -> None:
        """A server whose host is gone says nothing."""
        pgconn, end = self._connection.pgconn, time.monotonic() + _ANSWER
        pgconn.send_query(b"")
        while True:
            if not self._poll.poll(max(0.0, end - time.monotonic()) * 1000):
                raise TimeoutError("the server does not answer")
            pgconn.consume_input()
            while not pgconn.is_busy():
                if pgconn.get_result() is None:
                    return
            if time.monotonic() >= end:
                raise TimeoutError("the server does not answer")

    def wake(self) -> None:
        os.eventfd_write(self._event, 1)

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()
        os.close(self._event)


def _who() -> str:
    """This process: a child of fork(2) is another."""
    return _name(os.getpid())


@cache
def _name(_pid: int) -> str:
    return os.urandom(8).hex()

"""The Signal through PostgreSQL (LISTEN and NOTIFY), for a store without Valkey.

A process listens on one connection, and notifies on the connections of its catalogs.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from functools import cache

import msgspec
import psycopg
from psycopg import sql

from ortet._util.lock_timeout import lock_timeout
from ortet.backends.postgres.pool import PostgresDatabase, PostgresPool, shared_pool
from ortet.backends.postgres.stall_detection import StallDetector, connect_monitored
from ortet.backends.pubsub import Publisher, PubSubSignal, Subscriber
from ortet.errors import OrtetError

_KEEPALIVE_SECONDS = 5.0
"""Seconds of silence after which the connection is checked."""
_KEEPALIVE_TIMEOUT_SECONDS = 3.0
_CONNECT_TIMEOUT_SECONDS = 2.0
"""The time limit for connecting. No caller depends on it."""
_PUBLISH_INTERVAL_SECONDS = 0.01
"""The pause between publications.

Each is a transaction, and a database runs them one after another.
"""
_MAX_TOPIC_BYTES = 7000
"""PostgreSQL allows fewer than 8000 bytes. A longer topic is sent as "any topic"."""
# The transaction is written to the log, but its flush need not be awaited.
_NOTIFY = """SELECT set_config('synchronous_commit', 'off', true)
    UNION ALL SELECT pg_notify(%s, told)::text FROM unnest(%s::text[]) AS told"""


def postgres_signal(database: PostgresDatabase, namespace: str) -> PubSubSignal:
    """Return a signal with one channel per store. A message is the sender's id and a topic."""
    return PubSubSignal(_PostgresTransport(database, f"ortet_{namespace}"))


class _PostgresTransport(msgspec.Struct, frozen=True):
    database: PostgresDatabase
    channel: str

    name = "postgres"
    has_prefix_filter = False
    is_echo_free = True
    publish_interval = _PUBLISH_INTERVAL_SECONDS

    @property
    def connection_errors(self) -> tuple[type[Exception], ...]:
        return (psycopg.Error, OrtetError, OSError)

    def connect_publisher(self) -> Publisher:
        return _PostgresPublisher(shared_pool(self.database), self.channel)

    def connect_subscriber(self, prefix: str) -> Subscriber:  # noqa: ARG002 - it hears all
        conninfo = self.database.conninfo
        connection = connect_monitored(
            conninfo,
            StallDetector(conninfo, _CONNECT_TIMEOUT_SECONDS),
            connect_timeout=int(_CONNECT_TIMEOUT_SECONDS),
        )
        try:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.channel)))
            return _PostgresSubscriber(connection)
        except BaseException:
            connection.close()
            raise


class _PostgresPublisher:
    def __init__(self, pool: PostgresPool, channel: str) -> None:
        self._pool = pool
        self._channel = channel

    def publish(self, topics: list[str]) -> None:
        sent_topics = [topic if len(topic.encode()) <= _MAX_TOPIC_BYTES else "" for topic in topics]
        values = (self._channel, [f"{_sender_id()} {topic}" for topic in sent_topics])
        try:
            with lock_timeout(_CONNECT_TIMEOUT_SECONDS), self._pool.borrow() as connection:
                connection.execute(_NOTIFY, values, prepare=True)
        except psycopg.Error as error:
            self._pool.discard_stale(error)
            raise

    def close(self) -> None:
        self._pool.remove_user()


class _PostgresSubscriber:
    """Reads the connection directly, so that another thread can wake it."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._wakeup_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._poll.register(self._wakeup_fd, select.POLLIN)

    def receive(self) -> list[str] | None:
        payloads = self._read()
        if not payloads and not self._poll.poll(_KEEPALIVE_SECONDS * 1000):
            self._ping()
        payloads += self._read()
        ours = f"{_sender_id()} "
        topics = [payload.partition(" ")[2] for payload in payloads if not payload.startswith(ours)]
        return None if "" in topics else topics

    def _read(self) -> list[str]:
        pgconn = self._connection.pgconn
        pgconn.consume_input()
        payloads = []
        while (notification := pgconn.notifies()) is not None:
            payloads.append(notification.extra.decode("utf-8", "replace"))
        return payloads

    def _ping(self) -> None:
        """Check that the server answers. A host that is gone does not close its connections."""
        pgconn, end = self._connection.pgconn, time.monotonic() + _KEEPALIVE_TIMEOUT_SECONDS
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
        os.eventfd_write(self._wakeup_fd, 1)

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()
        os.close(self._wakeup_fd)


def _sender_id() -> str:
    """Return the id of this process. A forked child has another one."""
    return _sender_id_of(os.getpid())


@cache
def _sender_id_of(_pid: int) -> str:
    return os.urandom(8).hex()

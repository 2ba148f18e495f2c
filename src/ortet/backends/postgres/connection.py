"""Runs catalog statements on PostgreSQL. The only place where a statement is retried."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from ortet.backends.base import Lease
from ortet.backends.postgres.errors import (
    NO_PARTITION,
    is_collision,
    is_lost,
    translate_postgres_error,
)
from ortet.backends.postgres.pool import (
    DEFAULT_WAIT_SECONDS,
    catalog_closed,
    parse_database_url,
    shared_pool,
)
from ortet.backends.postgres.stall_detection import ServerStalled
from ortet.errors import Invalid

Values = Sequence[Any] | dict[str, Any]

_TRIES = 8
"""Attempts of one statement that collides with others or loses its connection."""
_PAUSE = 0.01


class PostgresClient:
    """Runs statements on connections that all clients of this process share per schema."""

    def __init__(
        self,
        url: str,
        *,
        schema: str,
        create: bool,
        connections: int,
        wait: float = DEFAULT_WAIT_SECONDS,
    ) -> None:
        self.database = parse_database_url(url, schema=schema, connections=connections, wait=wait)
        self.schema, self.place = schema, self.database.place
        self._closed = False
        self._pool = shared_pool(self.database)
        try:
            self._pool.check_schema(create=create)
        except BaseException:
            self._pool.remove_user()
            raise

    def run(
        self, statement: str, values: Values = (), *, lease: Lease | None = None
    ) -> list[tuple[Any, ...]]:
        """Run a statement and return all rows.

        It is retried after a collision and after a lost connection. A statement that must not run
        twice has to recognise a repetition. For that, the parameter `doubt` is set to True after a
        lost connection.
        """
        self._check()
        for attempt in range(_TRIES):
            try:
                with self._pool.borrow() as connection:
                    cursor = connection.execute(statement, values, prepare=True, binary=True)
                    return cursor.fetchall() if cursor.description else []
            except psycopg.Error as error:
                # a stalled server was already waited for, and it may still execute the statement
                last = attempt == _TRIES - 1 or isinstance(error, ServerStalled)
                if error.sqlstate == NO_PARTITION and not last:
                    self.run("SELECT ahead()")
                elif last or not (is_lost(error) or is_collision(error)):
                    if isinstance(error, ServerStalled):
                        self._pool.discard_stale(error)
                    raise translate_postgres_error(error, self.place, lease) from error
                elif is_lost(error):
                    if isinstance(values, dict):
                        values = {**values, "doubt": True}
                    self._pool.discard_stale(error)
            except (ValueError, OverflowError) as error:
                raise Invalid("bad_value", f"PostgreSQL cannot keep this ({error})") from error
            time.sleep(random.uniform(0.5, 1.5) * _PAUSE * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def read_transaction(self, settings: str = "") -> Iterator[psycopg.Connection]:
        """Yield a connection in a read-only transaction with one snapshot.

        No statement is retried. Unavailable then has the error of the driver as its cause.
        """
        self._check()
        try:
            with self._pool.borrow() as connection:
                connection.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {settings}")
                try:
                    yield connection
                finally:
                    with suppress(psycopg.Error):
                        connection.rollback()
        except psycopg.Error as error:
            if is_lost(error):
                self._pool.discard_stale(error)
            raise translate_postgres_error(error, self.place) from error

    @contextmanager
    def dedicated_connection(self) -> Iterator[psycopg.Connection]:
        """Yield a connection outside of the pool, for long work."""
        self._check()
        with self._pool.dedicated_connection() as connection:
            yield connection

    def _check(self) -> None:
        if self._closed:
            raise catalog_closed()

    def close(self) -> None:
        """Leave the shared pool. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._pool.remove_user()

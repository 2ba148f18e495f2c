"""A PostgreSQL database as a catalog sees it: the one place where a statement is tried again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from ortet.backends.base import Lease
from ortet.backends.postgres.errors import NO_PARTITION, is_collision, is_lost, translated
from ortet.backends.postgres.pool import WAIT, closed, database_of, joined
from ortet.backends.postgres.stall_detection import Still
from ortet.errors import Invalid

Values = Sequence[Any] | dict[str, Any]

_TRIES = 8
"""Of one statement, when others are in its way or the connection is lost."""
_PAUSE = 0.01


class Link:
    """On connections that all links of this process to the same schema share."""

    def __init__(
        self, url: str, *, schema: str, create: bool, connections: int, wait: float = WAIT
    ) -> None:
        self.database = database_of(url, schema=schema, connections=connections, wait=wait)
        self.schema, self.place = schema, self.database.place
        self._closed = False
        self._pool = joined(self.database)
        try:
            self._pool.ready(create=create)
        except BaseException:
            self._pool.leave()
            raise

    def run(
        self, statement: str, values: Values = (), *, lease: Lease | None = None
    ) -> list[tuple[Any, ...]]:
        """All rows. Tried again after a collision, and when the connection was lost: what must not
        be done twice has to know it by itself; `doubt` among the values is set then."""
        self._check()
        for attempt in range(_TRIES):
            try:
                with self._pool.lent() as connection:
                    cursor = connection.execute(statement, values, prepare=True, binary=True)
                    return cursor.fetchall() if cursor.description else []
            except psycopg.Error as error:
                # one who stood still was waited for; what it was asked it may yet do
                last = attempt == _TRIES - 1 or isinstance(error, Still)
                if error.sqlstate == NO_PARTITION and not last:
                    self.run("SELECT ahead()")
                elif last or not (is_lost(error) or is_collision(error)):
                    if isinstance(error, Still):
                        self._pool.distrust(error)
                    raise translated(error, self.place, lease) from error
                elif is_lost(error):
                    if isinstance(values, dict):
                        values = {**values, "doubt": True}
                    self._pool.distrust(error)
            except (ValueError, OverflowError) as error:
                raise Invalid("bad_value", f"PostgreSQL cannot keep this ({error})") from error
            time.sleep(random.uniform(0.5, 1.5) * _PAUSE * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def reading(self, settings: str = "") -> Iterator[psycopg.Connection]:
        """For several statements that see one moment. None of them is tried again: Unavailable has
        the driver's own error as its cause."""
        self._check()
        try:
            with self._pool.lent() as connection:
                connection.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {settings}")
                try:
                    yield connection
                finally:
                    with suppress(psycopg.Error):
                        connection.rollback()
        except psycopg.Error as error:
            if is_lost(error):
                self._pool.distrust(error)
            raise translated(error, self.place) from error

    @contextmanager
    def own(self) -> Iterator[psycopg.Connection]:
        """A connection that nobody else gets, for what takes long."""
        self._check()
        with self._pool.own() as connection:
            yield connection

    def _check(self) -> None:
        if self._closed:
            raise closed()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._pool.leave()

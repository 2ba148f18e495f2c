"""Connections to PostgreSQL that do not wait for ever: a server that stands still keeps its sockets
open and says nothing. One that answers somebody is busy, and is waited for."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import suppress
from threading import Lock
from typing import Any, TypeVar

import psycopg

from ortet._util.deadlines import ours

T = TypeVar("T")

_QUIET = 5.0
"""Seconds without an answer after which it is asked whether anybody is there."""
_KNOWN = 2.0
"""Seconds for which that is known."""


class Still(psycopg.OperationalError):
    """The server does not answer. What it was asked to do it may yet do."""


class Watch:
    """Of all connections of one process to a database. `wait` is for how many seconds the server
    may stand still."""

    def __init__(self, conninfo: str, wait: float) -> None:
        self._conninfo = conninfo
        self._wait = wait
        self._lock = Lock()
        self._asked = 0.0
        self._since: float | None = None  # when it was first missed, until it is there again

    def heard(self) -> None:
        if self._since is not None:
            self._since, self._asked = None, 0.0

    def look(self, began: float) -> float:
        """When the server was last there, for a statement that has heard nothing since `began`;
        Still when it has been waited for long enough."""
        patience = ours()
        longest = self._wait if patience is None else min(self._wait, patience.seconds)
        if time.monotonic() - began < min(_QUIET, longest):
            return began
        since = self._missed(began)
        if since is None:
            return time.monotonic()
        if time.monotonic() - since < longest:
            return began
        if patience is not None:
            patience.lose()
        raise Still(f"it has not answered for {time.monotonic() - since:.0f} s")

    def _missed(self, began: float) -> float | None:
        """Since when it does not answer. One asks for all who wait."""
        with self._lock:
            if time.monotonic() - self._asked >= _KNOWN:
                if self._answers():
                    self._since = None
                elif self._since is None:
                    self._since = began
                self._asked = time.monotonic()
            return self._since

    def _answers(self) -> bool:
        """Also one that lets nobody in any more does; one that is gone breaks its connections."""
        try:
            psycopg.connect(self._conninfo, autocommit=True).close()
        except psycopg.errors.ConnectionTimeout:
            return False
        except psycopg.Error:
            return True
        return True


class Watched(psycopg.Connection[Any]):
    """Closed when it raises Still: the answer may yet come there."""

    watch: Watch | None = None

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **given: Any) -> T:
        watch = self.watch
        if watch is None:
            return super().wait(gen, *args, **given)
        try:
            return super().wait(_looking(gen, watch), *args, **given)
        except Still:
            with suppress(psycopg.Error):
                self.close()
            raise


def connected(conninfo: str, watch: Watch, **given: Any) -> Watched:
    connection = Watched.connect(conninfo, autocommit=True, **given)
    connection.watch = watch
    return connection


def _looking(gen: Generator[Any, Any, T], watch: Watch) -> Generator[Any, Any, T]:
    """psycopg comes back with nothing ten times a second, so that signals are seen."""
    began = time.monotonic()
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready:
                watch.heard()
                began = time.monotonic()
            else:
                began = watch.look(began)
            wanted = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result

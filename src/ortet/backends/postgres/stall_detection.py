"""Connections to PostgreSQL that do not wait for ever: a server that stands still keeps its sockets
open and says nothing. One that answers somebody is busy, and is waited for."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import suppress
from threading import Lock
from typing import Any, TypeVar

import psycopg

from ortet._util.deadlines import current_lock_timeout

T = TypeVar("T")

_PROBE_AFTER_SECONDS = 5.0
"""Seconds without an answer after which it is asked whether anybody is there."""
_PROBE_INTERVAL_SECONDS = 2.0
"""Seconds for which that is known."""


class ServerStalled(psycopg.OperationalError):
    """The server does not answer. What it was asked to do it may yet do."""


class StallDetector:
    """Of all connections of one process to a database. `wait` is for how many seconds the server
    may stand still."""

    def __init__(self, conninfo: str, max_stall_seconds: float) -> None:
        self._conninfo = conninfo
        self._max_stall_seconds = max_stall_seconds
        self._lock = Lock()
        self._probed_at = 0.0
        self._stalled_since: float | None = (
            None  # when it was first missed, until it is there again
        )

    def reset(self) -> None:
        if self._stalled_since is not None:
            self._stalled_since, self._probed_at = None, 0.0

    def check(self, began: float) -> float:
        """When the server was last there, for a statement that has heard nothing since `began`;
        Still when it has been waited for long enough."""
        patience = current_lock_timeout()
        longest = (
            self._max_stall_seconds
            if patience is None
            else min(self._max_stall_seconds, patience.seconds)
        )
        if time.monotonic() - began < min(_PROBE_AFTER_SECONDS, longest):
            return began
        since = self._probe_stall(began)
        if since is None:
            return time.monotonic()
        if time.monotonic() - since < longest:
            return began
        if patience is not None:
            patience.expire()
        raise ServerStalled(f"it has not answered for {time.monotonic() - since:.0f} s")

    def _probe_stall(self, began: float) -> float | None:
        """Since when it does not answer. One asks for all who wait."""
        with self._lock:
            if time.monotonic() - self._probed_at >= _PROBE_INTERVAL_SECONDS:
                if self._is_responding():
                    self._stalled_since = None
                elif self._stalled_since is None:
                    self._stalled_since = began
                self._probed_at = time.monotonic()
            return self._stalled_since

    def _is_responding(self) -> bool:
        """Also one that lets nobody in any more does; one that is gone breaks its connections."""
        try:
            psycopg.connect(self._conninfo, autocommit=True).close()
        except psycopg.errors.ConnectionTimeout:
            return False
        except psycopg.Error:
            return True
        return True


class MonitoredConnection(psycopg.Connection[Any]):
    """Closed when it raises Still: the answer may yet come there."""

    detector: StallDetector | None = None

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        watch = self.detector
        if watch is None:
            return super().wait(gen, *args, **kwargs)
        try:
            return super().wait(_monitor(gen, watch), *args, **kwargs)
        except ServerStalled:
            with suppress(psycopg.Error):
                self.close()
            raise


def connect_monitored(conninfo: str, detector: StallDetector, **kwargs: Any) -> MonitoredConnection:
    connection = MonitoredConnection.connect(conninfo, autocommit=True, **kwargs)
    connection.detector = detector
    return connection


def _monitor(gen: Generator[Any, Any, T], detector: StallDetector) -> Generator[Any, Any, T]:
    """psycopg comes back with nothing ten times a second, so that signals are seen."""
    began = time.monotonic()
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready:
                detector.reset()
                began = time.monotonic()
            else:
                began = detector.check(began)
            wanted = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result

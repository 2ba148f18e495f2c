"""Detects a PostgreSQL server that has stalled: its connections stay open, but it does not answer.

A server that answers a new connection is only busy, and is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import suppress
from threading import Lock
from typing import Any, TypeVar

import psycopg

from ortet._util.lock_timeout import current_lock_timeout

T = TypeVar("T")

_PROBE_AFTER_SECONDS = 5.0
"""Seconds without an answer after which the server is probed."""
_PROBE_INTERVAL_SECONDS = 2.0
"""Seconds for which the result of a probe is valid."""


class ServerStalled(psycopg.OperationalError):
    """The server does not answer. It may still execute the statement."""


class StallDetector:
    """Detects stalls for all connections of one process to a database.

    `max_stall_seconds` is how long the server may not answer.
    """

    def __init__(self, conninfo: str, max_stall_seconds: float) -> None:
        self._conninfo = conninfo
        self._max_stall_seconds = max_stall_seconds
        self._lock = Lock()
        self._probed_at = 0.0
        self._stalled_since: float | None = None
        """The start of the current stall; None if the server answers."""

    def reset(self) -> None:
        """Record that the server has answered."""
        if self._stalled_since is not None:
            self._stalled_since, self._probed_at = None, 0.0

    def check(self, began: float) -> float:
        """Check for a stall during a statement that has received nothing since `began`.

        Return the time when the server was last known to answer. Raise ServerStalled if the stall
        lasts too long.
        """
        timeout = current_lock_timeout()
        limit = self._max_stall_seconds
        if timeout is not None:
            limit = min(limit, timeout.seconds)
        if time.monotonic() - began < min(_PROBE_AFTER_SECONDS, limit):
            return began
        since = self._probe_stall(began)
        if since is None:
            return time.monotonic()
        if time.monotonic() - since < limit:
            return began
        if timeout is not None:
            timeout.expire()
        raise ServerStalled(f"the server has not answered for {time.monotonic() - since:.0f} s")

    def _probe_stall(self, began: float) -> float | None:
        """Return the start of the stall, or None. One thread probes for all that wait."""
        with self._lock:
            if time.monotonic() - self._probed_at >= _PROBE_INTERVAL_SECONDS:
                if self._is_responding():
                    self._stalled_since = None
                elif self._stalled_since is None:
                    self._stalled_since = began
                self._probed_at = time.monotonic()
            return self._stalled_since

    def _is_responding(self) -> bool:
        """Return False only on a connect timeout.

        A server that refuses connections does answer, and a server that is gone breaks its
        connections.
        """
        try:
            psycopg.connect(self._conninfo, autocommit=True).close()
        except psycopg.errors.ConnectionTimeout:
            return False
        except psycopg.Error:
            return True
        return True


class MonitoredConnection(psycopg.Connection[Any]):
    """A connection that closes itself when it raises ServerStalled.

    It cannot be reused, because the old answer may still arrive.
    """

    detector: StallDetector | None = None

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        detector = self.detector
        if detector is None:
            return super().wait(gen, *args, **kwargs)
        try:
            return super().wait(_monitor(gen, detector), *args, **kwargs)
        except ServerStalled:
            with suppress(psycopg.Error):
                self.close()
            raise


def connect_monitored(conninfo: str, detector: StallDetector, **kwargs: Any) -> MonitoredConnection:
    """Open a connection in autocommit mode that raises ServerStalled on a stall."""
    connection = MonitoredConnection.connect(conninfo, autocommit=True, **kwargs)
    connection.detector = detector
    return connection


def _monitor(gen: Generator[Any, Any, T], detector: StallDetector) -> Generator[Any, Any, T]:
    """Check for stalls whenever psycopg returns without data, which it does ten times a second."""
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

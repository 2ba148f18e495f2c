"""Hand-over of sessions between processes.

A process that asks for a session is notified when it is free. The process that released it lets the
other one take it first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ortet.backends.base import Signal
from ortet.errors import OrtetError
from ortet.hub.hub import Hub
from ortet.sessions.writing.lease_handover import (
    LeaseRequest,
    received_topic,
    released_topic,
    request_topic,
)

_TAKE_TIMEOUT_SECONDS = 0.3
"""Time that the other process has to take the session.

Without signals it retries within this time.
"""
_MAX_RELEASED = 1000


class SessionHandover:
    """The hand-over of the sessions of one store, seen from this server."""

    def __init__(self, hub: Hub, signal: Signal) -> None:
        self._hub = hub
        self._signal = signal
        self._released: dict[str, tuple[int, float]] = {}  # signal token and time, by session id

    def record_release(self, session: str) -> None:
        """Record that the session is about to be released for another process."""
        while len(self._released) >= _MAX_RELEASED:  # the oldest were never taken
            with suppress(KeyError, StopIteration, RuntimeError):
                del self._released[next(iter(self._released))]
        with suppress(OSError, OrtetError):
            self._released[session] = self._signal.token(received_topic(session)), time.monotonic()

    def notify_released(self, session: str) -> None:
        """Tell waiting processes that the session is free."""
        self.notify(released_topic(session))

    def notify(self, topic: str) -> None:
        """Send a signal, and ignore errors."""
        with suppress(OSError, OrtetError):  # only a hint: a lost notification is harmless
            self._signal.notify(topic)

    def wait_for_taker(self, session: str) -> None:
        """Wait until the process that asked for the session has taken it, or a timeout passes.

        Without the wait, a busy client would reopen the session before the other process wakes up.
        """
        token, when = self._released.pop(session, (0, 0.0))
        rest = when + _TAKE_TIMEOUT_SECONDS - time.monotonic()
        if rest > 0:
            self._signal.wait(received_topic(session), token, rest)

    def is_requested(self, session: str, token: int) -> bool:
        """Return True if another process asked for the session since `token`."""
        return self._signal.wait(request_topic(session), token, 0)

    @contextmanager
    def request_lease(self, session: str, timeout: float) -> Iterator[LeaseWaiter]:
        """Yield a waiter for the lease of a session. The request ends with the block."""
        with LeaseRequest(self._hub.store, session) as request:
            yield LeaseWaiter(self._signal, request, released_topic(session), timeout)


class LeaseWaiter:
    """Waits for a lease between attempts to open a session.

    `token` is the signal token from before the last attempt, so no notification is missed.
    """

    def __init__(self, signal: Signal, request: LeaseRequest, topic: str, timeout: float) -> None:
        self._signal = signal
        self._request = request
        self._topic = topic
        self._deadline = time.monotonic() + timeout
        self.token = signal.token(topic)

    def wait(self) -> bool:
        """Ask for the lease and wait until it is free or must be asked for again.

        Returns:
            False if the deadline has passed.
        """
        rest = self._deadline - time.monotonic()
        if rest <= 0:
            return False
        self._signal.wait(self._topic, self.token, min(rest, self._request.send()))
        self.token = self._signal.token(self._topic)
        return True

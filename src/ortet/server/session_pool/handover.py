"""Sessions that go from server to server: who asks for one is told when it is free, and who gave
one away lets that other come first."""

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
"""Seconds that the other has to take it: it asks again within them, where no signal comes."""
_MAX_RELEASED = 1000


class SessionHandover:
    """Of the sessions of one store, as one server sees it."""

    def __init__(self, hub: Hub, signal: Signal) -> None:
        self._hub = hub
        self._signal = signal
        self._released: dict[str, tuple[int, float]] = {}  # a token, and when

    def record_release(self, session: str) -> None:
        """It is about to be let go for another."""
        while len(self._released) >= _MAX_RELEASED:  # nobody came back for the first of them
            with suppress(KeyError, StopIteration, RuntimeError):
                del self._released[next(iter(self._released))]
        with suppress(OSError, OrtetError):
            self._released[session] = self._signal.token(received_topic(session)), time.monotonic()

    def notify_released(self, session: str) -> None:
        self.notify(released_topic(session))

    def notify(self, topic: str) -> None:
        with suppress(OSError, OrtetError):  # a hint
            self._signal.notify(topic)

    def wait_for_taker(self, session: str) -> None:
        """Without this who works without a break would have it back before another is awake."""
        token, when = self._released.pop(session, (0, 0.0))
        rest = when + _TAKE_TIMEOUT_SECONDS - time.monotonic()
        if rest > 0:
            self._signal.wait(received_topic(session), token, rest)

    def is_requested(self, session: str, token: int) -> bool:
        """Whether anybody asked for it since then."""
        return self._signal.wait(request_topic(session), token, 0)

    @contextmanager
    def request_lease(self, session: str, timeout: float) -> Iterator[LeaseWaiter]:
        with LeaseRequest(self._hub, session) as request:
            yield LeaseWaiter(self._signal, request, released_topic(session), timeout)


class LeaseWaiter:
    """One that tries to open a session, and waits after each try that failed; `token` is of the
    moment before the try."""

    def __init__(self, signal: Signal, request: LeaseRequest, topic: str, timeout: float) -> None:
        self._signal = signal
        self._request = request
        self._topic = topic
        self._deadline = time.monotonic() + timeout
        self.token = signal.token(topic)

    def wait(self) -> bool:
        """Ask for it, and wait until it is free or is to be asked for again; False when it is too
        late for that."""
        rest = self._deadline - time.monotonic()
        if rest <= 0:
            return False
        self._signal.wait(self._topic, self.token, min(rest, self._request.send()))
        self.token = self._signal.token(self._topic)
        return True

"""Sessions that go from server to server: who asks for one is told when it is free, and who gave
one away lets that other come first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ortet.backends.base import Signal
from ortet.errors import OrtetError
from ortet.hub.hub import Hub
from ortet.sessions.writing.lease_handover import Request, left, taken, wanted

_FIRST = 0.3
"""Seconds that the other has to take it: it asks again within them, where no signal comes."""
_MOST = 1000


class Handing:
    """Of the sessions of one store, as one server sees it."""

    def __init__(self, door: Hub, signal: Signal) -> None:
        self._door = door
        self._signal = signal
        self._given: dict[str, tuple[int, float]] = {}  # a token, and when

    def give(self, session: str) -> None:
        """It is about to be let go for another."""
        while len(self._given) >= _MOST:  # nobody came back for the first of them
            with suppress(KeyError, StopIteration, RuntimeError):
                del self._given[next(iter(self._given))]
        with suppress(OSError, OrtetError):
            self._given[session] = self._signal.token(taken(session)), time.monotonic()

    def tell_left(self, session: str) -> None:
        self.tell(left(session))

    def tell(self, topic: str) -> None:
        with suppress(OSError, OrtetError):  # a hint
            self._signal.notify(topic)

    def after_you(self, session: str) -> None:
        """Without this who works without a break would have it back before another is awake."""
        token, when = self._given.pop(session, (0, 0.0))
        rest = when + _FIRST - time.monotonic()
        if rest > 0:
            self._signal.wait(taken(session), token, rest)

    def is_asked(self, session: str, token: int) -> bool:
        """Whether anybody asked for it since then."""
        return self._signal.wait(wanted(session), token, 0)

    @contextmanager
    def asking(self, session: str, patience: float) -> Iterator[Asking]:
        with Request(self._door, session) as request:
            yield Asking(self._signal, request, left(session), patience)


class Asking:
    """One that tries to open a session, and waits after each try that failed; `token` is of the
    moment before the try."""

    def __init__(self, signal: Signal, request: Request, topic: str, patience: float) -> None:
        self._signal = signal
        self._request = request
        self._topic = topic
        self._until = time.monotonic() + patience
        self.token = signal.token(topic)

    def wait(self) -> bool:
        """Ask for it, and wait until it is free or is to be asked for again; False when it is too
        late for that."""
        rest = self._until - time.monotonic()
        if rest <= 0:
            return False
        self._signal.wait(self._topic, self.token, min(rest, self._request.ask()))
        self.token = self._signal.token(self._topic)
        return True

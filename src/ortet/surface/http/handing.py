"""Sessions that go from server to server: who asks for one is told when it is free, and who gave
one away lets that other come first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ortet.backend.abc import Signal
from ortet.errors import OrtetError
from ortet.session.hub import Hub
from ortet.session.lending import Request, left, taken

_FIRST = 0.3
"""Seconds that the other has to take it: it asks again within them, where no signal comes."""
_MOST = 1000

Wait = Callable[[], bool]
"""Asks for the session, and waits for an answer; False when it is too late for that."""


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

    @contextmanager
    def asking(self, session: str, patience: float) -> Iterator[Wait]:
        """To try, and to wait after each try that failed."""
        signal, topic = self._signal, left(session)
        until = time.monotonic() + patience
        token = signal.token(topic)
        asked = False
        with Request(self._door, session) as request:

            def wait() -> bool:
                nonlocal token, asked
                rest = until - time.monotonic()
                if rest <= 0:
                    return False
                asked = True
                signal.wait(topic, token, min(rest, request.ask()))
                token = signal.token(topic)
                return True

            yield wait
            if asked:
                self.tell(taken(session))

"""How long who asks for something waits for a store that another process keeps locked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class LockTimeout:
    """Seconds for one lock. Who did not get one waits for no other: a call that writes several
    times, and tidies up when that fails, is not late by the sum of it."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def expire(self) -> None:
        self.seconds = 0.0


_CURRENT_TIMEOUT: ContextVar[LockTimeout | None] = ContextVar("ortet-patience", default=None)


@contextmanager
def lock_timeout(seconds: float) -> Iterator[None]:
    """In this block no lock is waited for any longer."""
    token = _CURRENT_TIMEOUT.set(LockTimeout(seconds))
    try:
        yield
    finally:
        _CURRENT_TIMEOUT.reset(token)


def current_lock_timeout() -> LockTimeout | None:
    """Of who asks; None: as long as the store itself allows."""
    return _CURRENT_TIMEOUT.get()

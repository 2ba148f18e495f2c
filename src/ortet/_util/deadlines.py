"""How long who asks for something waits for a store that another process keeps locked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Patience:
    """Seconds for one lock. Who did not get one waits for no other: a call that writes several
    times, and tidies up when that fails, is not late by the sum of it."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def lose(self) -> None:
        self.seconds = 0.0


_OURS: ContextVar[Patience | None] = ContextVar("ortet-patience", default=None)


@contextmanager
def patient(seconds: float) -> Iterator[None]:
    """In this block no lock is waited for any longer."""
    token = _OURS.set(Patience(seconds))
    try:
        yield
    finally:
        _OURS.reset(token)


def ours() -> Patience | None:
    """Of who asks; None: as long as the store itself allows."""
    return _OURS.get()

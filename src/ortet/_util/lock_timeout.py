"""The time limit of a call for waiting on a store that another process has locked.

A module of its own, because backends read the limit and surfaces set it; neither imports the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class LockTimeout:
    """The number of seconds to wait for one lock.

    After the first timeout the limit is zero. A call that writes several times, and cleans up after
    a failure, is thus not delayed once per write.
    """

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def expire(self) -> None:
        """Set the limit to zero after a timeout, so that no further lock is waited for."""
        self.seconds = 0.0


_CURRENT_TIMEOUT: ContextVar[LockTimeout | None] = ContextVar("ortet-lock-timeout", default=None)


@contextmanager
def lock_timeout(seconds: float) -> Iterator[None]:
    """Within this block, wait at most `seconds` for a lock of the store."""
    token = _CURRENT_TIMEOUT.set(LockTimeout(seconds))
    try:
        yield
    finally:
        _CURRENT_TIMEOUT.reset(token)


def current_lock_timeout() -> LockTimeout | None:
    """Return the limit set by the caller, or None if the default of the store applies."""
    return _CURRENT_TIMEOUT.get()

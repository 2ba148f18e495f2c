"""A clock that only a test advances.

This is a module of its own so that any test can import it without the suites.
"""

from __future__ import annotations


class ManualClock:
    """A manual clock, so that tests of expiry need no sleep."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, ns: int) -> None:
        self._now_ns += ns

"""A clock that stands still until a test moves it."""

from __future__ import annotations


class ManualClock:
    """Time for tests of expiry: no sleeping, no flakes."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, ns: int) -> None:
        self._now_ns += ns

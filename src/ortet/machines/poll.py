"""Whether there is something to read. select(2) cannot ask that of a descriptor above 1023, and a
server has thousands."""

from __future__ import annotations

import select
from typing import Protocol

MAX_POLL_SECONDS = 1e6
"""Seconds that can be waited for at once: poll(2) counts milliseconds in 31 bits."""


class _Source(Protocol):
    def fileno(self) -> int: ...


def poll_readable(*sources: int | _Source, seconds: float | None = 0.0) -> list[int]:
    """The descriptors of those that can be read, or have ended; waits until there is one, at most
    so many seconds, or LONGEST; None: for ever."""
    poll = select.poll()
    for one in sources:
        poll.register(one, select.POLLIN)
    most = None if seconds is None else min(max(0.0, seconds), MAX_POLL_SECONDS) * 1000
    return [fd for fd, _ in poll.poll(most)]

"""Whether there is something to read. select(2) cannot ask that of a descriptor above 1023, and a
server has thousands."""

from __future__ import annotations

import select
from typing import Protocol


class _Source(Protocol):
    def fileno(self) -> int: ...


def readable(*sources: int | _Source, seconds: float | None = 0.0) -> list[int]:
    """The descriptors of those that can be read, or have ended; waits until there is one, at most
    so many seconds, None: for ever."""
    poll = select.poll()
    for one in sources:
        poll.register(one, select.POLLIN)
    return [fd for fd, _ in poll.poll(None if seconds is None else max(0.0, seconds) * 1000)]

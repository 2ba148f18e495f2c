"""A poll(2) call with a timeout in seconds.

This is a module of its own because select(2) fails for descriptors above 1023, which a server has,
and several packages need a replacement.
"""

from __future__ import annotations

import select
from typing import Protocol

MAX_POLL_SECONDS = 1e6
"""The longest single wait in seconds: poll(2) counts milliseconds in 31 bits."""


class _Source(Protocol):
    def fileno(self) -> int: ...


def poll_readable(*sources: int | _Source, seconds: float | None = 0.0) -> list[int]:
    """Return the descriptors that are readable or at end of file.

    Waits until there is at least one, for at most `seconds` (limited to MAX_POLL_SECONDS), or
    without limit if `seconds` is None.
    """
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    most = None if seconds is None else min(max(0.0, seconds), MAX_POLL_SECONDS) * 1000
    return [fd for fd, _ in poll.poll(most)]

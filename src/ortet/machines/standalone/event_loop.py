"""An event loop: waits for descriptors and signals, and calls their callbacks.

Standard library only: pid 1 of a machine loads this file as a plain module. `poll` needs no
descriptor of its own, and all state is plain memory. So a restored process continues to wait.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
from collections.abc import Callable, Generator
from typing import Any

IN = select.POLLIN
OUT = select.POLLOUT
HANGUP = select.POLLHUP | select.POLLERR | select.POLLNVAL

PendingReply = Generator[float, None, dict[str, Any]]
"""A reply that takes time: yields the time to resume at the latest; any event resumes it too."""

_MAX_WAIT_SECONDS = 86_400.0  # about the most that the kernel accepts

now = time.monotonic


def deadline_after(seconds: Any) -> float:
    """Return the time in so many seconds, at most a day from now."""
    return now() + min(max(0.0, seconds or 0.0), _MAX_WAIT_SECONDS)


class EventLoop:
    """A poll loop with one callback for each descriptor."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._signals: set[int] = set()
        self._wakeup_fd, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self.watch(self._wakeup_fd, IN, self._drain_wakeups)

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call `callback` with the events of a descriptor, or change the events that are watched.

        A hang-up is always reported.
        """
        self._poll.register(fd, events)
        self._callbacks[fd] = callback

    def unwatch(self, fd: int) -> None:
        if self._callbacks.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def catch_signal(self, number: signal.Signals) -> None:
        """Record this signal for the result of `run_once`."""
        signal.signal(number, lambda number, _: self._signals.add(number))

    def run_once(self, deadline: float) -> set[int]:
        """Wait for events, call their callbacks, and return the signals that arrived."""
        wait = None if deadline == math.inf else min(max(deadline - now(), 0.0), _MAX_WAIT_SECONDS)
        for fd, event in self._poll.poll(None if wait is None else math.ceil(wait * 1000)):
            call = self._callbacks.get(fd)  # an earlier callback may have removed it
            if call is not None:
                call(event)
        came, self._signals = self._signals, set()
        return came

    def _drain_wakeups(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup_fd, 4096)

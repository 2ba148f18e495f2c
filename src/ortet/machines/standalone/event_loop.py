"""Waits for descriptors and signals, and calls whoever they are for.

Standard library only: the pid 1 of a machine loads this file by itself. `poll` needs no descriptor
of its own, and all is plain memory: a restored process goes on waiting.
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
"""An answer that takes a while: yields when to go on at the latest, or earlier on any event."""

_MAX_WAIT_SECONDS = 86_400.0  # seconds; what the kernel takes is not much more

now = time.monotonic


def deadline_after(seconds: Any) -> float:
    """When so many seconds have passed; whatever is asked for, a day at most."""
    return now() + min(max(0.0, seconds or 0.0), _MAX_WAIT_SECONDS)


class EventLoop:
    def __init__(self) -> None:
        self._poll = select.poll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._signals: set[int] = set()
        self._wakeup_fd, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self.watch(self._wakeup_fd, IN, self._drain_wakeups)

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call with what happened; also to change what is waited for. A hang-up always counts."""
        self._poll.register(fd, events)
        self._callbacks[fd] = callback

    def unwatch(self, fd: int) -> None:
        if self._callbacks.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def catch_signal(self, number: signal.Signals) -> None:
        """Remember this signal until the end of the turn in which it came."""
        signal.signal(number, lambda number, _: self._signals.add(number))

    def run_once(self, deadline: float) -> set[int]:
        """Wait for something to happen and make the calls; returns the signals that came."""
        wait = None if deadline == math.inf else min(max(deadline - now(), 0.0), _MAX_WAIT_SECONDS)
        for fd, event in self._poll.poll(None if wait is None else math.ceil(wait * 1000)):
            call = self._callbacks.get(fd)  # an earlier call of this turn may have dropped it
            if call is not None:
                call(event)
        came, self._signals = self._signals, set()
        return came

    def _drain_wakeups(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup_fd, 4096)

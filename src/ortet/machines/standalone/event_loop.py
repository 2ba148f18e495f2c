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

Held = Generator[float, None, dict[str, Any]]
"""An answer that takes a while: yields when to go on at the latest, or earlier on any event."""

_LONGEST = 86_400.0  # seconds; what the kernel takes is not much more

now = time.monotonic


def after(seconds: Any) -> float:
    """When so many seconds have passed; whatever is asked for, a day at most."""
    return now() + min(max(0.0, seconds or 0.0), _LONGEST)


class Loop:
    def __init__(self) -> None:
        self._poll = select.poll()
        self._calls: dict[int, Callable[[int], None]] = {}
        self._signals: set[int] = set()
        self._wakes, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self.watch(self._wakes, IN, self._woken)

    def watch(self, fd: int, events: int, call: Callable[[int], None]) -> None:
        """Call with what happened; also to change what is waited for. A hang-up always counts."""
        self._poll.register(fd, events)
        self._calls[fd] = call

    def drop(self, fd: int) -> None:
        if self._calls.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def listen(self, number: signal.Signals) -> None:
        """Remember this signal until the end of the turn in which it came."""
        signal.signal(number, lambda number, _: self._signals.add(number))

    def turn(self, until: float) -> set[int]:
        """Wait for something to happen and make the calls; returns the signals that came."""
        wait = None if until == math.inf else min(max(until - now(), 0.0), _LONGEST)
        for fd, event in self._poll.poll(None if wait is None else math.ceil(wait * 1000)):
            call = self._calls.get(fd)  # an earlier call of this turn may have dropped it
            if call is not None:
                call(event)
        came, self._signals = self._signals, set()
        return came

    def _woken(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakes, 4096)

"""Hubs that nobody uses: kept open for who looks next, or opens a session, each for one thread at a
time. To open one anew reads what every writer of the store has not sealed yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import BoundedSemaphore

from ortet.errors import OrtetError
from ortet.hub.hub import Hub

_MAX_IDLE_HUBS = 512
_IDLE_SECONDS = 60.0
"""Seconds after which one that nobody needed is closed: it may hold what a sweep would take."""
_MAX_CONCURRENT_OPENS = 2
"""That are opened at once: it is work for the processor, and hundreds at it keep all others off."""


class HubPool:
    """Any thread may ask for one."""

    def __init__(self, open_hub: Callable[[], Hub]) -> None:
        self._open_hub = open_hub
        self._open_semaphore = BoundedSemaphore(_MAX_CONCURRENT_OPENS)
        self._idle: deque[tuple[Hub, float]] = deque()
        self._closed = False

    @contextmanager
    def borrow(self, is_kept: Callable[[Hub], bool] = lambda _hub: False) -> Iterator[Hub]:
        """What is opened in it is closed after; unless it is `kept`, by who gives it back later."""
        hub = self._acquire()
        clean = False
        try:
            yield hub
            clean = True
        except OrtetError:
            clean = True
            raise
        finally:
            if not is_kept(hub):
                if clean and not hub.has_open_sessions:
                    self._put_idle(hub)
                else:
                    hub.close()

    def return_hub(self, hub: Hub) -> None:
        """One that was kept. Its sessions are let go; raises what that does, and it is closed."""
        if hub.open_workspaces():
            hub.close()
            return
        try:
            hub.pause_open_sessions()
        except BaseException:
            hub.close()
            raise
        self._put_idle(hub)

    def _acquire(self) -> Hub:
        with suppress(IndexError):
            return self._idle.pop()[0]  # what it has read last is what is asked for next
        with self._open_semaphore:
            with suppress(IndexError):  # given back while we waited
                return self._idle.pop()[0]
            return self._open_hub()

    def _put_idle(self, hub: Hub) -> None:
        used = hub.open_workspaces() or hub.close_callbacks or hub._machines.has_engines
        if used or len(self._idle) >= _MAX_IDLE_HUBS:
            hub.close()
            return
        self._idle.append((hub, time.monotonic()))
        if self._closed:  # meanwhile
            self.close()

    def close_idle(self) -> None:
        """Close those that nobody needed for a while."""
        while self._idle and time.monotonic() - self._idle[0][1] > _IDLE_SECONDS:
            try:
                hub, since = self._idle.popleft()
            except IndexError:
                return
            if time.monotonic() - since <= _IDLE_SECONDS:  # another was faster
                self._idle.appendleft((hub, since))
                return
            with suppress(OrtetError):
                hub.close()

    def close(self) -> None:
        """Those that are lent are closed when they come back."""
        self._closed = True
        while self._idle:
            with suppress(OrtetError, IndexError):
                self._idle.pop()[0].close()

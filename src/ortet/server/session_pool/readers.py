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

_MOST = 512
_REST = 60.0
"""Seconds after which one that nobody needed is closed: it may hold what a sweep would take."""
_AT_ONCE = 2
"""That are opened at once: it is work for the processor, and hundreds at it keep all others off."""


class Readers:
    """Any thread may ask for one."""

    def __init__(self, open_hub: Callable[[], Hub]) -> None:
        self._open_hub = open_hub
        self._opening = BoundedSemaphore(_AT_ONCE)
        self._free: deque[tuple[Hub, float]] = deque()
        self._closed = False

    @contextmanager
    def lent(self, kept: Callable[[Hub], bool] = lambda _hub: False) -> Iterator[Hub]:
        """What is opened in it is closed after; unless it is `kept`, by who gives it back later."""
        hub = self._taken()
        clean = False
        try:
            yield hub
            clean = True
        except OrtetError:
            clean = True
            raise
        finally:
            if not kept(hub):
                if clean and not hub.has_open_sessions:
                    self._put(hub)
                else:
                    hub.close()

    def give_back(self, hub: Hub) -> None:
        """One that was kept. Its sessions are let go; raises what that does, and it is closed."""
        if hub.opened():
            hub.close()
            return
        try:
            hub.let_go()
        except BaseException:
            hub.close()
            raise
        self._put(hub)

    def _taken(self) -> Hub:
        with suppress(IndexError):
            return self._free.pop()[0]  # what it has read last is what is asked for next
        with self._opening:
            with suppress(IndexError):  # given back while we waited
                return self._free.pop()[0]
            return self._open_hub()

    def _put(self, hub: Hub) -> None:
        used = hub.opened() or hub.closing or hub._machines.used
        if used or len(self._free) >= _MOST:
            hub.close()
            return
        self._free.append((hub, time.monotonic()))
        if self._closed:  # meanwhile
            self.close()

    def rest(self) -> None:
        """Close those that nobody needed for a while."""
        while self._free and time.monotonic() - self._free[0][1] > _REST:
            try:
                hub, since = self._free.popleft()
            except IndexError:
                return
            if time.monotonic() - since <= _REST:  # another was faster
                self._free.appendleft((hub, since))
                return
            with suppress(OrtetError):
                hub.close()

    def close(self) -> None:
        """Those that are lent are closed when they come back."""
        self._closed = True
        while self._free:
            with suppress(OrtetError, IndexError):
                self._free.pop()[0].close()

"""A pool of idle hubs, each used by one thread at a time.

Opening a hub is slow, because it reads the unsealed tails of all writers of the store.
"""

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
"""Time after which an unused hub is closed, because it may keep objects from garbage collection."""
_MAX_CONCURRENT_OPENS = 2
"""Maximum number of hubs that open at once.

Opening uses the processor and would slow down all requests.
"""


class HubPool:
    """Idle hubs of one store. Thread-safe."""

    def __init__(self, open_hub: Callable[[], Hub]) -> None:
        self._open_hub = open_hub
        self._open_semaphore = BoundedSemaphore(_MAX_CONCURRENT_OPENS)
        self._idle: deque[tuple[Hub, float]] = deque()
        self._closed = False

    @contextmanager
    def borrow(self, is_kept: Callable[[Hub], bool] = lambda _hub: False) -> Iterator[Hub]:
        """Lend a hub to this thread. Sessions that are opened in it are closed afterwards.

        If `is_kept` returns True at the end, the borrower keeps the hub and calls `return_hub`
        later.
        """
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
                if clean and not hub.internals.has_open_sessions:
                    self._put_idle(hub)
                else:
                    hub.close()

    def return_hub(self, hub: Hub) -> None:
        """Return a hub that a borrower kept, and pause its sessions.

        If pausing fails, the hub is closed and the error is raised.
        """
        if hub.workspaces.find_open():
            hub.close()
            return
        try:
            hub.internals.pause_open_sessions()
        except BaseException:
            hub.close()
            raise
        self._put_idle(hub)

    def _acquire(self) -> Hub:
        with suppress(IndexError):
            return self._idle.pop()[0]  # the hub used last has the best caches
        with self._open_semaphore:
            with suppress(IndexError):  # returned while this thread waited
                return self._idle.pop()[0]
            return self._open_hub()

    def _put_idle(self, hub: Hub) -> None:
        used = (
            hub.workspaces.find_open() or hub.close_callbacks or hub.workspaces.machines.has_engines
        )
        if used or len(self._idle) >= _MAX_IDLE_HUBS:
            hub.close()
            return
        self._idle.append((hub, time.monotonic()))
        if self._closed:  # closed by another thread in between
            self.close()

    def close_idle(self) -> None:
        """Close the hubs that were idle for a while."""
        while self._idle and time.monotonic() - self._idle[0][1] > _IDLE_SECONDS:
            try:
                hub, since = self._idle.popleft()
            except IndexError:
                return
            if time.monotonic() - since <= _IDLE_SECONDS:  # another thread took the old one
                self._idle.appendleft((hub, since))
                return
            with suppress(OrtetError):
                hub.close()

    def close(self) -> None:
        """Close the idle hubs. Hubs that are lent are closed when they are returned."""
        self._closed = True
        while self._idle:
            with suppress(OrtetError, IndexError):
                self._idle.pop()[0].close()

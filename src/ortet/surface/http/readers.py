"""Hubs that only look: some are kept open, each is used by one thread at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ortet.errors import OrtetError
from ortet.session.hub import Hub

_MOST = 32


class Readers:
    """Any thread may ask for one."""

    def __init__(self, open_hub: Callable[[], Hub]) -> None:
        self._open_hub = open_hub
        self._free: deque[Hub] = deque()
        self._closed = False

    @contextmanager
    def lent(self) -> Iterator[Hub]:
        """What is opened in it is closed after."""
        try:
            hub = self._free.pop()  # what it has read last is what is asked for next
        except IndexError:
            hub = self._open_hub()
        clean = False
        try:
            yield hub
            clean = True
        except OrtetError:
            clean = True
            raise
        finally:
            used = not clean or hub.opened() or hub.has_open_sessions
            if used or len(self._free) >= _MOST:
                hub.close()
            else:
                self._free.append(hub)
                if self._closed:  # meanwhile
                    self.close()

    def close(self) -> None:
        """Those that are lent are closed when they come back."""
        self._closed = True
        while self._free:
            with suppress(OrtetError, IndexError):
                self._free.pop().close()

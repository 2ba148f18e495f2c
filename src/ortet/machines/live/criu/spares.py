"""CRIUs that run already and wait for something to restore."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from ortet.machines.live.criu.rpc import gone
from ortet.machines.poll import readable

_ENOUGH = 2  # more restores side by side are seldom


class Spare(NamedTuple):
    """One, in namespaces of its own, which were made when the host had these `mounts`, and in a
    control `group` of its own, or none."""

    sock: socket.socket
    pid: int
    mounts: bytes
    group: str
    begun: Callable[[], None]
    ended: Callable[[], None]

    @contextmanager
    def space(self) -> Iterator[int]:
        """A descriptor of its mount namespace."""
        self.begun()
        try:
            fd = os.open(f"/proc/{self.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise gone() from error
        try:
            yield fd
        finally:
            os.close(fd)

    @property
    def usable(self) -> bool:
        """Does it live, and see the host as it is now?"""
        return self.mounts == mounted() and not readable(self.sock)

    def close(self) -> None:
        self.sock.close()
        self.ended()


class Spares:
    """Those of one keeper."""

    def __init__(self) -> None:
        self._waiting: list[Spare] = []
        self._lock = Lock()
        weakref.finalize(self, _end, self._waiting)

    def take(self) -> Spare | None:
        while True:
            with self._lock:
                if not self._waiting:
                    return None
                spare = self._waiting.pop()
            if spare.usable:
                return spare
            spare.close()

    def fill(self, make: Callable[[], Spare]) -> None:
        while len(self._waiting) < _ENOUGH:
            spare = make()
            with self._lock:
                self._waiting.append(spare)

    def close(self) -> None:
        with self._lock:
            _end(self._waiting)


def _end(waiting: list[Spare]) -> None:
    while waiting:
        waiting.pop().close()


def mounted() -> bytes:
    """What is mounted in our namespace."""
    return Path("/proc/self/mountinfo").read_bytes()

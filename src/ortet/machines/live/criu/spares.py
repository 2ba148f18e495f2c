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

from ortet.machines.live.criu.rpc import criu_died
from ortet.machines.poll import poll_readable

_MAX_SPARES = 2  # more restores side by side are seldom


class SpareCriu(NamedTuple):
    """One, in namespaces of its own, which were made when the host had these `mounts`, and in a
    control `group` of its own, or none."""

    sock: socket.socket
    pid: int
    mounts: bytes
    cgroup: str
    wait_started: Callable[[], None]
    on_close: Callable[[], None]

    @contextmanager
    def open_mount_namespace(self) -> Iterator[int]:
        """A descriptor of its mount namespace."""
        self.wait_started()
        try:
            fd = os.open(f"/proc/{self.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise criu_died() from error
        try:
            yield fd
        finally:
            os.close(fd)

    @property
    def usable(self) -> bool:
        """Does it live, and see the host as it is now?"""
        return self.mounts == read_mountinfo() and not poll_readable(self.sock)

    def close(self) -> None:
        self.sock.close()
        self.on_close()


class SpareCriuPool:
    """Those of one keeper."""

    def __init__(self) -> None:
        self._idle: list[SpareCriu] = []
        self._lock = Lock()
        weakref.finalize(self, _close_all, self._idle)

    def acquire(self) -> SpareCriu | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                spare = self._idle.pop()
            if spare.usable:
                return spare
            spare.close()

    def fill(self, start_spare: Callable[[], SpareCriu]) -> None:
        while len(self._idle) < _MAX_SPARES:
            spare = start_spare()
            with self._lock:
                self._idle.append(spare)

    def close(self) -> None:
        with self._lock:
            _close_all(self._idle)


def _close_all(spares: list[SpareCriu]) -> None:
    while spares:
        spares.pop().close()


def read_mountinfo() -> bytes:
    """What is mounted in our namespace."""
    return Path("/proc/self/mountinfo").read_bytes()

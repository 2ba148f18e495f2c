"""Spare CRIU processes, which already run and wait for a restore."""

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

_MAX_SPARES = 2  # more parallel restores are rare


class SpareCriu(NamedTuple):
    """A waiting CRIU in namespaces of its own.

    `mounts` are the host's mounts at its start. `cgroup` is its control group, or empty.
    """

    sock: socket.socket
    pid: int
    mounts: bytes
    cgroup: str
    wait_started: Callable[[], None]
    on_close: Callable[[], None]

    @contextmanager
    def open_mount_namespace(self) -> Iterator[int]:
        """Open its mount namespace for the duration of the block."""
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
        """True if it runs, and the host's mounts have not changed since its start."""
        return self.mounts == read_mountinfo() and not poll_readable(self.sock)

    def close(self) -> None:
        self.sock.close()
        self.on_close()


class SpareCriuPool:
    """The spare CRIU processes of one supervisor."""

    def __init__(self) -> None:
        self._idle: list[SpareCriu] = []
        self._lock = Lock()
        weakref.finalize(self, _close_all, self._idle)

    def acquire(self) -> SpareCriu | None:
        """Return a usable spare, or None; spares that are not usable are closed."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                spare = self._idle.pop()
            if spare.usable:
                return spare
            spare.close()

    def fill(self, start_spare: Callable[[], SpareCriu]) -> None:
        """Start spares until the pool is full."""
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
    """Return the mounts of this process's namespace."""
    return Path("/proc/self/mountinfo").read_bytes()

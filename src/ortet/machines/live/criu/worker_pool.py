"""Control groups that are created in advance, each for a waiting CRIU.

Moving a running process to a group takes as long as a small restore, because of a kernel-wide wait.
A process that joins by itself, before it has any work, does not wait.
"""

from __future__ import annotations

import os
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from ortet.machines.live.cgroups import GROUP_PREFIX, CgroupFactory, read_record, remove_group
from ortet.machines.live.criu.rpc import criu_died
from ortet.machines.poll import poll_readable

# Spare CRIU processes, which already run and wait for a restore.

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


_RECORDS_DIRECTORY = "reserved"
_REMOVE_TRIES, _REMOVE_PAUSE_SECONDS = 50, 0.01
_CONTROLLER = "pids"  # every machine has a limit for this controller


class ReservedCgroups:
    """The reserved groups of one process, each recorded below `area` until a machine uses it."""

    def __init__(self, cgroups: CgroupFactory, area: Path) -> None:
        self._cgroups = cgroups
        self._records = area / _RECORDS_DIRECTORY
        self._reserved: set[str] = set()
        self._abandoned: set[str] = set()  # reserved groups whose CRIU was told to end

    def create(self) -> str:
        """Create a group, and return its path; "" if this host has no groups for us."""
        self._remove_abandoned()
        place = self._cgroups.parents.get(_CONTROLLER)
        if place is None:
            return ""
        path = place.path / f"{GROUP_PREFIX}spare-{os.urandom(8).hex()}"
        try:
            self._records.mkdir(parents=True, exist_ok=True)
            self._record_path(str(path)).write_text(f"{path}\n")
            path.mkdir()
        except OSError:
            return ""
        self._reserved.add(str(path))
        return str(path)

    def assign(self, group: str) -> None:
        """Give a group to a machine, whose home records it from now on."""
        if group:
            self._reserved.discard(group)
            self._abandoned.discard(group)
            self._record_path(group).unlink(missing_ok=True)

    def abandon(self, group: str) -> None:
        """Mark an unused group for removal, once its CRIU has ended."""
        if group in self._reserved:
            self._abandoned.add(group)

    def close(self) -> None:
        """Remove all reserved groups, after the waiting CRIU processes were told to end.

        If one is still ending, its record serves to remove the group later.
        """
        self._abandoned |= self._reserved
        for _ in range(_REMOVE_TRIES):
            self._remove_abandoned()
            if not self._abandoned:
                return
            time.sleep(_REMOVE_PAUSE_SECONDS)

    def _record_path(self, group: str) -> Path:
        return self._records / f"{os.getpid()}-{os.path.basename(group)}"

    def _remove_abandoned(self) -> None:
        for group in list(self._abandoned):
            if remove_group(Path(group)):
                self.assign(group)
        remove_leftover_groups(self._records.parent)


def leftover_records(area: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yield the records of processes that have ended, and the groups they name."""
    with suppress(OSError):
        for record in (area / _RECORDS_DIRECTORY).iterdir():
            if not os.path.isdir(f"/proc/{record.name.partition('-')[0]}"):
                yield record, read_record(record)


def remove_leftover_groups(area: Path) -> None:
    """Remove the reserved groups of processes that have ended."""
    for record, groups in leftover_records(area):
        if all(map(remove_group, groups)):
            record.unlink(missing_ok=True)

"""Takes file locks again that CRIU let go while it restored.

A lock of fcntl(2) ends when its process closes any descriptor of that file. CRIU takes the locks,
maps the files, and then closes the descriptors it mapped them with: the locks of a file that is
also mapped (SQLite's -shm, LMDB) are gone before the process runs, which believes it has them. So
all processes are stopped before CRIU lets them go, and each is made to ask for its locks again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ortet.errors import Conflict
from ortet.machines.live.criu.rpc import image_entries, parse_message
from ortet.machines.live.criu.tracing import TraceError, Tracer

_LOCKS_IMAGE = "filelocks.img"
_POSIX = 1
_STOPPED = 3  # what CRIU's images say of a process that stood still by a signal
_TASK, _STATE = 3, 1  # of a core image; of what that says of its process
_END_OF_FILE = "EOF"


class PosixLock(NamedTuple):
    """One of fcntl(2); `last` is the last byte, or None for all there will ever be."""

    fd: int
    write: bool
    first: int
    last: int | None


class LockRestorer:
    """The locks of one dump; `hold` before its processes run, `take` when CRIU is gone."""

    def __init__(self, images: Path) -> None:
        self._images = images
        self._dumped_locks = _read_dumped_locks(images)
        self._stopped_pids: list[int] = []
        self._missing_locks: dict[int, list[PosixLock]] = {}

    @property
    def is_needed(self) -> bool:
        return bool(self._dumped_locks)

    def stop_processes(self, init_pid: int) -> None:
        """Of the machine whose pid 1 is `root`, stop what runs if any lock is missing: one that
        waits for it must not get it now. A signal sent to a process under CRIU stops it before its
        first instruction."""
        inside = dict(_machine_processes(init_pid))
        for number, locks in self._dumped_locks.items():
            pid = inside.get(number, 0)
            has = set(_locks_of(pid))
            missing = [lock for lock in locks if lock not in has]
            if missing:
                self._missing_locks[pid] = missing
        if self._missing_locks:
            # those that had stopped before stay so
            self._stopped_pids = [
                p for n, p in inside.items() if p != init_pid and not self._was_stopped(n)
            ]
            for pid in self._stopped_pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def reacquire(self) -> None:
        """Have each ask for its own, and let all go on. Conflict when one could not."""
        try:
            for pid, locks in self._missing_locks.items():
                with Tracer(pid) as tracer:
                    for lock in locks:
                        tracer.lock(lock.fd, write=lock.write, first=lock.first, last=lock.last)
        except (OSError, TraceError) as error:
            raise Conflict(
                "cannot_restore",
                "a process holds a lock on a file that it has mapped, which CRIU loses, and it "
                f"could not be taken again ({error}): restore the files alone, only={{'files'}}",
            ) from error
        finally:
            self._missing_locks = {}
            # the later ones first: a shell must not see its children stand still
            for pid in sorted(self._stopped_pids, reverse=True):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _was_stopped(self, inner_pid: int) -> bool:
        for core in image_entries(self._images / f"core-{inner_pid}.img"):
            for task in parse_message(core).get(_TASK, ()):
                return isinstance(task, bytes) and parse_message(task)[_STATE][0] == _STOPPED
        return False


def _read_dumped_locks(images: Path) -> dict[int, list[PosixLock]]:
    """By the pid inside: what each process had when it was dumped."""
    wanted: dict[int, list[PosixLock]] = {}
    for entry in image_entries(images / _LOCKS_IMAGE):
        fields = parse_message(entry)
        flag, kind, pid, fd, first, length = (int(fields.get(n, [0])[0]) for n in range(1, 7))
        if flag & _POSIX:
            last = first + length - 1 if length else None
            wanted.setdefault(pid, []).append(PosixLock(fd, bool(kind), first, last))
    return wanted


def _machine_processes(init_pid: int) -> Iterator[tuple[int, int]]:
    """The processes of a machine: the pid inside, and ours."""
    space = os.readlink(f"/proc/{init_pid}/ns/pid")
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and os.readlink(f"/proc/{name}/ns/pid") == space:
                for line in Path(f"/proc/{name}/status").read_text().splitlines():
                    if line.startswith("NSpid:"):
                        yield int(line.split()[-1]), int(name)


def _locks_of(pid: int) -> Iterator[PosixLock]:
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fdinfo"):
            for line in Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines():
                fields = line.split()
                if fields[0] == "lock:" and fields[2] == "POSIX":
                    first, last = fields[-2:]
                    write = fields[4] == "WRITE"
                    yield PosixLock(
                        int(fd), write, int(first), None if last == _END_OF_FILE else int(last)
                    )

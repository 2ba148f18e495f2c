"""Takes file locks again that CRIU loses during a restore.

A fcntl(2) lock ends when its process closes any descriptor of that file. CRIU takes the locks, maps
the files, and then closes the descriptors that it used for mapping. So the locks of a file that is
also mapped (SQLite's -shm, LMDB) are lost, and the process does not know. Therefore all processes
are stopped before CRIU lets them run, and each is made to take its locks again.
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
_STOPPED = 3  # state of a stopped process in CRIU's images
_TASK, _STATE = 3, 1  # of a core image; of its task entry
_END_OF_FILE = "EOF"


class PosixLock(NamedTuple):
    """A fcntl(2) lock. `last` is its last byte, or None for the end of the file."""

    fd: int
    write: bool
    first: int
    last: int | None


class LockRestorer:
    """The locks of one dump.

    Call `stop_processes` before the processes run, and `reacquire` after CRIU has ended.
    """

    def __init__(self, images: Path) -> None:
        self._images = images
        self._dumped_locks = _read_dumped_locks(images)
        self._stopped_pids: list[int] = []
        self._missing_locks: dict[int, list[PosixLock]] = {}

    @property
    def is_needed(self) -> bool:
        """True if the dump has any fcntl(2) locks."""
        return bool(self._dumped_locks)

    def stop_processes(self, init_pid: int) -> None:
        """Stop the processes of a machine if any lock is missing.

        A process that waits for such a lock must not get it now. A signal sent while CRIU holds a
        process stops it before its first instruction.
        """
        inside = dict(_machine_processes(init_pid))
        for number, locks in self._dumped_locks.items():
            pid = inside.get(number, 0)
            has = set(_locks_of(pid))
            missing = [lock for lock in locks if lock not in has]
            if missing:
                self._missing_locks[pid] = missing
        if self._missing_locks:
            # Processes that were stopped at the dump stay stopped.
            self._stopped_pids = [
                p for n, p in inside.items() if p != init_pid and not self._was_stopped(n)
            ]
            for pid in self._stopped_pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def reacquire(self) -> None:
        """Make each process take its missing locks, and let all processes continue.

        Raises Conflict("cannot_restore") if a lock cannot be taken.
        """
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
            # Children first: a shell must not see its children stopped.
            for pid in sorted(self._stopped_pids, reverse=True):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _was_stopped(self, inner_pid: int) -> bool:
        for core in image_entries(self._images / f"core-{inner_pid}.img"):
            for task in parse_message(core).get(_TASK, ()):
                return isinstance(task, bytes) and parse_message(task)[_STATE][0] == _STOPPED
        return False


def _read_dumped_locks(images: Path) -> dict[int, list[PosixLock]]:
    """Return the locks at the time of the dump, by pid inside the machine."""
    wanted: dict[int, list[PosixLock]] = {}
    for entry in image_entries(images / _LOCKS_IMAGE):
        fields = parse_message(entry)
        flag, kind, pid, fd, first, length = (int(fields.get(n, [0])[0]) for n in range(1, 7))
        if flag & _POSIX:
            last = first + length - 1 if length else None
            wanted.setdefault(pid, []).append(PosixLock(fd, bool(kind), first, last))
    return wanted


def _machine_processes(init_pid: int) -> Iterator[tuple[int, int]]:
    """Yield (pid inside, pid on the host) of the processes of a machine."""
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

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
from ortet.machines.live.criu.rpc import entries, parse
from ortet.machines.live.criu.tracing import Refusal, Tracer

_LOCKS = "filelocks.img"
_POSIX = 1
_STOPPED = 3  # what CRIU's images say of a process that stood still by a signal
_TASK, _STATE = 3, 1  # of a core image; of what that says of its process
_ALL = "EOF"


class Lock(NamedTuple):
    """One of fcntl(2); `last` is the last byte, or None for all there will ever be."""

    fd: int
    write: bool
    first: int
    last: int | None


class Relock:
    """The locks of one dump; `hold` before its processes run, `take` when CRIU is gone."""

    def __init__(self, images: Path) -> None:
        self._images = images
        self._wanted = _wanted(images)
        self._held: list[int] = []
        self._lost: dict[int, list[Lock]] = {}

    @property
    def needed(self) -> bool:
        return bool(self._wanted)

    def hold(self, root: int) -> None:
        """Of the machine whose pid 1 is `root`, stop what runs if any lock is missing: one that
        waits for it must not get it now. A signal sent to a process under CRIU stops it before its
        first instruction."""
        inside = dict(_inside(root))
        for number, locks in self._wanted.items():
            pid = inside.get(number, 0)
            has = set(_held_by(pid))
            missing = [lock for lock in locks if lock not in has]
            if missing:
                self._lost[pid] = missing
        if self._lost:
            # those that had stopped before stay so
            self._held = [p for n, p in inside.items() if p != root and not self._stood(n)]
            for pid in self._held:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def take(self) -> None:
        """Have each ask for its own, and let all go on. Conflict when one could not."""
        try:
            for pid, locks in self._lost.items():
                with Tracer(pid) as tracer:
                    for lock in locks:
                        tracer.lock(lock.fd, write=lock.write, first=lock.first, last=lock.last)
        except (OSError, Refusal) as error:
            raise Conflict(
                "cannot_restore",
                "a process holds a lock on a file that it has mapped, which CRIU loses, and it "
                f"could not be taken again ({error}): restore the files alone, only={{'files'}}",
            ) from error
        finally:
            self._lost = {}
            # the later ones first: a shell must not see its children stand still
            for pid in sorted(self._held, reverse=True):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _stood(self, number: int) -> bool:
        for core in entries(self._images / f"core-{number}.img"):
            for task in parse(core).get(_TASK, ()):
                return isinstance(task, bytes) and parse(task)[_STATE][0] == _STOPPED
        return False


def _wanted(images: Path) -> dict[int, list[Lock]]:
    """By the pid inside: what each process had when it was dumped."""
    wanted: dict[int, list[Lock]] = {}
    for entry in entries(images / _LOCKS):
        fields = parse(entry)
        flag, kind, pid, fd, first, length = (int(fields.get(n, [0])[0]) for n in range(1, 7))
        if flag & _POSIX:
            last = first + length - 1 if length else None
            wanted.setdefault(pid, []).append(Lock(fd, bool(kind), first, last))
    return wanted


def _inside(root: int) -> Iterator[tuple[int, int]]:
    """The processes of a machine: the pid inside, and ours."""
    space = os.readlink(f"/proc/{root}/ns/pid")
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and os.readlink(f"/proc/{name}/ns/pid") == space:
                for line in Path(f"/proc/{name}/status").read_text().splitlines():
                    if line.startswith("NSpid:"):
                        yield int(line.split()[-1]), int(name)


def _held_by(pid: int) -> Iterator[Lock]:
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fdinfo"):
            for line in Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines():
                fields = line.split()
                if fields[0] == "lock:" and fields[2] == "POSIX":
                    first, last = fields[-2:]
                    write = fields[4] == "WRITE"
                    yield Lock(int(fd), write, int(first), None if last == _ALL else int(last))

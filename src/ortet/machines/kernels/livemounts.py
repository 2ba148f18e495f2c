"""Which processes, on this host, work on mounts that are not their machine's own.

They are forks of Python kernels, or were started by one: CRIU finds the way to a file by the mounts
of the machine, and to these there is none.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress

_MOUNT = b"mnt_id:"


def mounts_of(pid: int) -> set[int]:
    """The numbers of all mounts that a process, which is in no fork, sees."""
    with open(f"/proc/{pid}/mountinfo", "rb") as file:
        return {int(line.split(None, 1)[0]) for line in file}


def mount_at(path: str) -> int:
    """The number of the mount that a path leads to; -1 where it leads nowhere."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        return mount_of(fd)
    finally:
        os.close(fd)


def mount_of(fd: int) -> int:
    return _number(f"/proc/self/fdinfo/{fd}")


def dwellers(root: int, but: Collection[int]) -> list[str]:
    """Which processes have a directory, open here, as their root."""
    there = mount_of(root)
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in but and mount_at(f"/proc/{name}/root") == there:
            with suppress(OSError), open(f"/proc/{name}/comm", encoding="utf-8") as file:
                found.append(f"{file.read().strip()} (pid {name})")
    return found


def left_there(pid: int, init: int) -> list[str]:
    """What a process holds of mounts other than those of the machine whose pid 1 is `init`, and
    cannot open again by its name: libraries and other mapped files, and what was deleted."""
    known = mounts_of(init)
    return sorted({*_mapped(pid, known), *_deleted(pid, known)})


def _mapped(pid: int, known: set[int]) -> Iterator[str]:
    place = f"/proc/{pid}/map_files"
    seen: set[str] = set()
    for name in os.listdir(place):
        with suppress(OSError):
            path = os.readlink(f"{place}/{name}")
            if path not in seen:
                seen.add(path)
                if mount_at(f"{place}/{name}") not in known | {-1} and not path.startswith("/dev/"):
                    yield path


def _deleted(pid: int, known: set[int]) -> Iterator[str]:
    place = f"/proc/{pid}/fd"
    for name in os.listdir(place):
        with suppress(OSError):
            path, now = os.readlink(f"{place}/{name}"), os.stat(f"{place}/{name}")
            kind = stat.S_ISREG(now.st_mode) or stat.S_ISDIR(now.st_mode)
            gone = path.startswith("/") and now.st_nlink == 0
            if kind and gone and _number(f"/proc/{pid}/fdinfo/{name}") not in known:
                yield path


def _number(path: str) -> int:
    with open(path, "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(_MOUNT)), -1)

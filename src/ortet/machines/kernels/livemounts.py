"""Which processes, on this host, work on mounts that are not their machine's own.

They are forks of Python kernels, or were started by one: CRIU finds the way to a file by the mounts
of the machine, and to these there is none.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress

_MOUNT_ID_FIELD = b"mnt_id:"


def mount_ids_of(pid: int) -> set[int]:
    """The numbers of all mounts that a process, which is in no fork, sees."""
    with open(f"/proc/{pid}/mountinfo", "rb") as file:
        return {int(line.split(None, 1)[0]) for line in file}


def mount_id_at(path: str) -> int:
    """The number of the mount that a path leads to; -1 where it leads nowhere."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        return mount_id_of(fd)
    finally:
        os.close(fd)


def mount_id_of(fd: int) -> int:
    return _read_mount_id(f"/proc/self/fdinfo/{fd}")


def processes_rooted_at(root: int, exclude: Collection[int]) -> list[str]:
    """Which processes have a directory, open here, as their root."""
    there = mount_id_of(root)
    found = []
    for name in os.listdir("/proc"):
        if (
            name.isdigit()
            and int(name) not in exclude
            and mount_id_at(f"/proc/{name}/root") == there
        ):
            with suppress(OSError), open(f"/proc/{name}/comm", encoding="utf-8") as file:
                found.append(f"{file.read().strip()} (pid {name})")
    return found


def foreign_files(pid: int, init_pid: int) -> list[str]:
    """What a process holds of mounts other than those of the machine whose pid 1 is `init`, and
    cannot open again by its name: libraries and other mapped files, and what was deleted."""
    known = mount_ids_of(init_pid)
    return sorted({*_foreign_mapped_files(pid, known), *_foreign_deleted_files(pid, known)})


def _foreign_mapped_files(pid: int, own_mounts: set[int]) -> Iterator[str]:
    place = f"/proc/{pid}/map_files"
    seen: set[str] = set()
    for name in os.listdir(place):
        with suppress(OSError):
            path = os.readlink(f"{place}/{name}")
            if path not in seen:
                seen.add(path)
                if mount_id_at(f"{place}/{name}") not in own_mounts | {-1} and not path.startswith(
                    "/dev/"
                ):
                    yield path


def _foreign_deleted_files(pid: int, own_mounts: set[int]) -> Iterator[str]:
    place = f"/proc/{pid}/fd"
    for name in os.listdir(place):
        with suppress(OSError):
            path, now = os.readlink(f"{place}/{name}"), os.stat(f"{place}/{name}")
            kind = stat.S_ISREG(now.st_mode) or stat.S_ISDIR(now.st_mode)
            gone = path.startswith("/") and now.st_nlink == 0
            if kind and gone and _read_mount_id(f"/proc/{pid}/fdinfo/{name}") not in own_mounts:
                yield path


def _read_mount_id(path: str) -> int:
    with open(path, "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(_MOUNT_ID_FIELD)), -1)

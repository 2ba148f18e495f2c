"""Finds processes of a machine that use mounts other than the machine's own.

They are kernel forks, or were started by one. CRIU finds files by the mounts of the machine, so it
cannot dump such processes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress

_MOUNT_ID_FIELD = b"mnt_id:"


def mount_ids_of(pid: int) -> set[int]:
    """Return the ids of all mounts that a process sees; it must not be a kernel fork."""
    with open(f"/proc/{pid}/mountinfo", "rb") as file:
        return {int(line.split(None, 1)[0]) for line in file}


def mount_id_at(path: str) -> int:
    """Return the id of the mount that a path is on, or -1 if it cannot be opened."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        return mount_id_of(fd)
    finally:
        os.close(fd)


def mount_id_of(fd: int) -> int:
    """Return the id of the mount that an open descriptor is on."""
    return _read_mount_id(f"/proc/self/fdinfo/{fd}")


def processes_rooted_at(root: int, exclude: Collection[int]) -> list[str]:
    """Return the processes whose root directory is the open directory `root`."""
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
    """Return files of other mounts that a process holds and cannot open again by name.

    These are mapped files, such as libraries, and deleted files. The machine's own mounts are those
    of its pid 1, `init_pid`.
    """
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

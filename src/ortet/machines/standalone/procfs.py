"""Lists the processes of a pid namespace, read from its /proc.

Standard library only: pid 1 of a machine loads this file as a plain module.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ortet.machines.standalone import process_tree
else:
    import process_tree

_READ_BYTES = 1 << 16

ProcessIdentity = tuple[int, bytes]
"""Pid and start time: a pid alone may be reused."""


class ProcessStat(NamedTuple):
    """One process, as /proc/PID/stat describes it."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    ticks: bytes
    """Start time, in clock ticks since boot."""
    pages: int
    threads: int

    @property
    def identity(self) -> ProcessIdentity:
        """Pid and start time, which identify a process even if its pid is reused."""
        return self.pid, self.ticks


def list_processes() -> list[ProcessStat]:
    """Return every process except this one, including zombies."""
    own = str(os.getpid())
    numbers = [name for name in os.listdir("/proc") if name.isdigit() and name != own]
    return [one for one in map(_read_stat, numbers) if one is not None]


def list_living() -> list[ProcessStat]:
    """Return every process except this one that can still run."""
    return [one for one in list_processes() if one.state not in "ZX" or one.threads > 1]


def is_unmarked(pid: int) -> bool:
    """Return True if a process carries no run mark.

    A process with a mark belongs to the run that the mark names.
    """
    return not run_marks(pid)


def run_marks(pid: int) -> list[str]:
    """Return the marks of the runs that a process belongs to, the outermost first."""
    key = process_tree.RUN_MARK_VARIABLE.encode() + b"="
    for item in read_proc_file(f"/proc/{pid}/environ").split(b"\0"):
        if item.startswith(key):
            return os.fsdecode(item[len(key) :]).split(":")
    return []


def mapped_files(directory: str) -> list[str]:
    """Return the files below a directory that a process may write through a memory mapping."""
    paths: set[str] = set()
    key = os.fsencode(directory).replace(b"\n", rb"\012")
    for process in _in_machine_root():
        maps = read_proc_file(f"/proc/{process.pid}/maps")
        for line in maps.splitlines() if key in maps else ():
            fields = line.split(None, 5)
            if len(fields) == 6 and fields[1][1:4:2] == b"ws":
                paths.add(os.fsdecode(fields[5].replace(rb"\012", b"\n")))
    return [path[len(directory) :] for path in paths if path.startswith(directory)]


def processes_using(directory: str, exclude: Collection[int]) -> list[str]:
    """Return the other processes that have a directory, or something below it, in use."""
    names = []
    mapping = b" " + os.fsencode(directory) + b"/"
    for process in _in_machine_root(exclude):
        links = [f"/proc/{process.pid}/cwd"]
        with contextlib.suppress(OSError):
            links += [
                f"/proc/{process.pid}/fd/{name}" for name in os.listdir(f"/proc/{process.pid}/fd")
            ]
        if mapping in read_proc_file(f"/proc/{process.pid}/maps") or any(
            _points_into(link, directory) for link in links
        ):
            names.append(f"{process.name} (pid {process.pid})")
    return names


def processes_rooted_at(root: int, exclude: Collection[int]) -> list[str]:
    """Return the other processes whose root directory is the open directory `root`."""
    there = _mount_id(root)
    others = [one for one in list_living() if one.pid not in exclude]
    return [
        f"{one.name} (pid {one.pid})"
        for one in others
        if _mount_id_at(f"/proc/{one.pid}/root") == there
    ]


def _in_machine_root(exclude: Collection[int] = ()) -> list[ProcessStat]:
    """Return the processes that see the machine's own files.

    For kernel forks, and processes they started, the same paths lead to other files.
    """
    here = _mount_id_at("/")
    others = [one for one in list_living() if one.pid not in exclude]
    return [one for one in others if _mount_id_at(f"/proc/{one.pid}/root") in (here, b"")]


def _mount_id_at(path: str) -> bytes:
    """Return the id of the mount that a directory is on, or nothing if it cannot be opened."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return _mount_id(fd)
    finally:
        os.close(fd)


def _mount_id(fd: int) -> bytes:
    lines = read_proc_file(f"/proc/self/fdinfo/{fd}").splitlines()
    return next((line for line in lines if line.startswith(b"mnt_id:")), b"")


def _points_into(link: str, directory: str) -> bool:
    try:
        target = os.readlink(link)
    except OSError:
        return False
    return target == directory or target.startswith(directory + "/")


def read_proc_file(path: str) -> bytes:
    """Return the content of a /proc file, or nothing if the process is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    parts = []
    try:
        while part := os.read(fd, _READ_BYTES):
            parts.append(part)
    except OSError:
        return b""
    finally:
        os.close(fd)
    return b"".join(parts)


def _read_stat(number: str) -> ProcessStat | None:
    text = read_proc_file(f"/proc/{number}/stat")
    # The command name is in parentheses, and may itself contain spaces and parentheses.
    before, after = text.find(b"("), text.rfind(b")")
    fields = text[after + 1 :].split()
    if len(fields) < 22:
        return None
    return ProcessStat(
        pid=int(number),
        name=os.fsdecode(text[before + 1 : after]),
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        ticks=fields[19],
        pages=int(fields[21]),
        threads=int(fields[17]),
    )

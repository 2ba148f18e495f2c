"""Finds and removes what crashes left of a store on this host.

Leftovers are homes of unknown machines, incomplete layers, dead sockets, and processes, cgroups and
mounts of machines that no process has open.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from ortet.machines.dirfd import STAGE_PREFIX, open_directory, remove_tree
from ortet.machines.live.cgroups import recorded_groups, remove_group
from ortet.machines.live.criu.worker_pool import leftover_records
from ortet.machines.overlay.layers.store import AREA
from ortet.machines.overlay.mount_plan import parse_mounts
from ortet.machines.standalone.syscalls import LinuxSyscalls

_LOCKS = ("lock", "open", "turn")
_VIEW = "root"
_KILL_TIMEOUT_MS = 5000


class Leftover(msgspec.Struct, frozen=True):
    """One thing that no process uses any more.

    Attributes:
        what: What it is.
        path: Its path.
        pid: Process id, for a process, otherwise 0.
    """

    what: Literal["home", "stage", "socket", "process", "group", "mount"]
    path: str
    pid: int = 0


def find_leftovers(store: Path, machines: Collection[str]) -> list[Leftover]:
    """Return the leftovers of a store.

    Args:
        store: The directory of the store.
        machines: The ids of all machines in the catalog. A locked home is in use and not returned.
    """
    local = store / "local"
    leftovers = [
        *_processes(local / "machines"),
        *_mounts(local / "machines"),
        *_homes(local / "machines", machines),
        *_reserved(local / "bases" / AREA),
        *_stages(local),
        *_sockets(local / "signal"),
        *_sockets(local / "agent", socket.SOCK_STREAM),
    ]
    return list(dict.fromkeys(leftovers))


def remove_leftovers(leftovers: Iterable[Leftover]) -> int:
    """Remove the leftovers and return how many are gone."""
    done = 0
    for leftover in leftovers:
        path = Path(leftover.path)
        with suppress(FileNotFoundError, ProcessLookupError):
            if leftover.what == "process":
                _kill_and_wait(leftover.pid)
            elif leftover.what == "mount":
                LinuxSyscalls().unmount(leftover.path, lazy=True)
            elif leftover.what == "group":
                remove_group(path)
            else:
                with open_directory(path.parent) as parent_fd:
                    remove_tree(parent_fd, os.fsencode(path.name))
        done += 1
    return done


def _kill_and_wait(pid: int) -> None:
    """Kill a process and wait until its mounts are released."""
    fd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(_KILL_TIMEOUT_MS)
    finally:
        os.close(fd)


def _processes(place: Path) -> Iterator[Leftover]:
    """Yield processes in the mount namespace of a machine that no process has open.

    No way is known in which this happens: the processes of a machine are killed with the process
    that had it open.
    """
    begin = b"upperdir=" + os.fsencode(os.path.realpath(place)) + b"/"
    seen: dict[str, str] = {}  # mount namespace -> id of its machine, or ""
    with suppress(OSError):
        seen[os.readlink("/proc/self/ns/mnt")] = ""
    for pid in filter(str.isdigit, os.listdir("/proc") if place.is_dir() else ()):
        with suppress(OSError):
            space = os.readlink(f"/proc/{pid}/ns/mnt")
            if space not in seen:
                _, separator, rest = Path(f"/proc/{pid}/mountinfo").read_bytes().partition(begin)
                seen[space] = os.fsdecode(rest.partition(b"/")[0]) if separator else ""
            home = place / seen[space]
            if seen[space] and home.is_dir() and not _in_use(home):
                yield Leftover("process", str(home), int(pid))


def _mounts(place: Path) -> Iterator[Leftover]:
    """Yield mounts of this process's namespace inside unused homes, innermost first."""
    top = os.path.realpath(place)
    with suppress(OSError):
        mounts = parse_mounts(Path("/proc/self/mountinfo").read_bytes())
        for mount_point in sorted(
            (one.at for one in mounts if one.at.startswith(f"{top}/")), reverse=True
        ):
            if not _in_use(Path(top, mount_point[len(top) + 1 :].partition("/")[0])):
                yield Leftover("mount", mount_point)


def _homes(place: Path, machines: Collection[str]) -> Iterator[Leftover]:
    for home in sorted(place.iterdir()) if place.is_dir() else ():
        if not home.is_dir() or _in_use(home):
            continue
        pid = _supervisor(home)
        if pid:
            yield Leftover("process", str(home), pid)
        for group in recorded_groups(home):
            if group.is_dir():
                yield Leftover("group", str(group))
        if home.name not in machines:
            yield Leftover("home", str(home))


def _reserved(area: Path) -> Iterator[Leftover]:
    for _, groups in leftover_records(area):
        yield from (Leftover("group", str(group)) for group in groups if group.is_dir())


def _in_use(home: Path) -> bool:
    """Return True if a process holds a lock of this home."""
    for name in _LOCKS:
        with suppress(FileNotFoundError), (home / name).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def _supervisor(home: Path) -> int:
    """Return the pid of a supervisor that outlived its hub, or 0.

    No way is known in which this happens.
    """
    try:
        pid = int(os.readlink(home / _VIEW).split("/")[2])
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return 0
    return pid if b"zygote.py" in command else 0


def _stages(local: Path) -> Iterator[Leftover]:
    """Yield directories whose builder died before they were complete."""
    begin = os.fsdecode(STAGE_PREFIX)
    for place in (local, local / "bases", local / "machines"):
        for name in sorted(os.listdir(place)) if place.is_dir() else ():
            half = place.name == "bases" and name.endswith(".new")
            if (name.startswith((begin, "probe-")) or half) and not _is_build_locked(place):
                yield Leftover("stage", str(place / name))


def _is_build_locked(place: Path) -> bool:
    lock = place / "build.lock"
    if not lock.exists():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _sockets(place: Path, kind: int = socket.SOCK_DGRAM) -> Iterator[Leftover]:
    """Yield sockets whose listener is dead."""
    if not place.is_dir():
        return
    directory_fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield from _probe_sockets(place, directory_fd, kind)
    finally:
        os.close(directory_fd)


def _probe_sockets(place: Path, directory_fd: int, kind: int) -> Iterator[Leftover]:
    for path in sorted([*place.glob("*.sock"), *place.glob("sock")]):
        with socket.socket(socket.AF_UNIX, kind) as probe:
            try:
                probe.connect(
                    f"/proc/self/fd/{directory_fd}/{path.name}"
                )  # the full path may be too long
            except OSError as error:
                if error.errno == errno.ECONNREFUSED:
                    yield Leftover("socket", str(path))

"""Finds what CRIU cannot dump in a live machine, before any process is stopped.

CRIU finds files by the mounts of the machine. So it cannot dump processes that use other mounts:
kernel forks, and what they have started.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import suppress

import msgspec

from ortet.errors import Conflict

_IO_URING_HELP = (
    "start it without io_uring (node and all that use libuv: UV_USE_IO_URING=0; PostgreSQL 18: "
    "io_method=worker)"
)
_ANON_INODE_REASONS = {
    "anon_inode:[io_uring]": ("it uses io_uring", _IO_URING_HELP),
    "anon_inode:[fanotify]": ("it watches files with fanotify", "use inotify or polling"),
    "anon_inode:[userfaultfd]": ("it uses userfaultfd", "start it without"),
    "anon_inode:[perf_event]": ("it is measuring with perf", "end the measurement"),
    "anon_inode:kvm-vm": ("it runs a virtual machine", "stop that first"),
    "anon_inode:bpf-map": ("it has loaded BPF programs", "start it without"),
}
_PARTLY_ENDED = "its first thread has ended and others have not"
_KERNEL_FORK_REASON = (
    "it is a fork of a Python kernel, or one has started it",
    "keep or close the fork",
)
_WAIT_HELP = "stop it, or commit when it has ended"
_EXIT_TIMEOUT_SECONDS, _POLL_SECONDS = 5.0, 0.001  # seconds
_INOTIFY = "anon_inode:inotify"
_DEVICE_REASONS = {
    "/dev/fuse": ("it serves a FUSE file system", "unmount that first"),
    "/dev/nvidia": ("it uses a graphics card", "keep such work outside of the machine"),
    "/dev/dri": ("it uses a graphics card", "keep such work outside of the machine"),
    "/dev/kfd": ("it uses a graphics card", "keep such work outside of the machine"),
}

_MOUNT_ID_FIELD = b"mnt_id:"


class Obstacle(msgspec.Struct, frozen=True):
    """A process that cannot be dumped, and why. `pid` is its pid inside the machine."""

    pid: int
    command: str
    what: str
    help: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}): {self.what}; {self.help}"


class PreflightResult(msgspec.Struct, frozen=True):
    """The obstacles to a dump, and `watching`: True if CRIU must search for watched files."""

    obstacles: list[Obstacle] = []
    watching: bool = False

    @property
    def has_only_ending(self) -> bool:
        """True if all obstacles are processes that have ended in part."""
        return bool(self.obstacles) and all(one.what == _PARTLY_ENDED for one in self.obstacles)


def inspect_processes(init_pid: int) -> PreflightResult:
    """Inspect every process of the machine whose pid 1 is `init_pid`."""
    inside = f"/proc/{init_pid}/root/proc"
    users = _read_link(f"{inside}/1/ns/user")
    mounts = mount_ids_of(init_pid)
    obstacles: list[Obstacle] = []
    watching = False
    for name in os.listdir(inside):
        if name.isdigit():
            with suppress(OSError):  # the process has just ended
                place = f"{inside}/{name}"
                if _is_ending(place):
                    obstacles.append(
                        Obstacle(int(name), _command(place), _PARTLY_ENDED, _WAIT_HELP)
                    )
                    continue
                opened = _open_targets(place)
                watching |= _INOTIFY in opened
                reasons = [*_reasons(place, users, opened)]
                if mount_id_at(f"{place}/root") not in mounts | {-1}:
                    reasons.append(_KERNEL_FORK_REASON)
                obstacles += [
                    Obstacle(int(name), _command(place), what, help_) for what, help_ in reasons
                ]
    return PreflightResult(obstacles, watching)


def check(init_pid: int) -> PreflightResult:
    """Raise Conflict("cannot_freeze") with the obstacles; wait for processes that are ending."""
    until = time.monotonic() + _EXIT_TIMEOUT_SECONDS
    result = inspect_processes(init_pid)
    while result.has_only_ending and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
        result = inspect_processes(init_pid)
    if result.obstacles:
        raise Conflict(
            "cannot_freeze",
            "this machine cannot be frozen with its processes: "
            + "; ".join(map(str, result.obstacles[:5]))
            + "; or stop them and commit again",
            obstacles=[msgspec.to_builtins(one) for one in result.obstacles],
        )
    return result


def _is_ending(proc_dir: str) -> bool:
    """Return True if the first thread has ended and others run: CRIU refuses such a process."""
    with open(f"{proc_dir}/stat", "rb") as file:
        state = file.read().rpartition(b")")[2].split()[0]
    return state in b"ZX" and len(os.listdir(f"{proc_dir}/task")) > 1


def _open_targets(proc_dir: str) -> set[str]:
    return {_read_link(f"{proc_dir}/fd/{fd}") for fd in os.listdir(f"{proc_dir}/fd")}


def _reasons(
    proc_dir: str, user_namespace: str, open_targets: set[str]
) -> Iterator[tuple[str, str]]:
    if _read_link(f"{proc_dir}/ns/user") != user_namespace:
        yield "it has a user namespace of its own", "switch its sandbox off, or stop it"
    with open(f"{proc_dir}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("TracerPid:") and line.split()[1] != "0":
                yield "a debugger is attached to it", "detach strace, gdb or the like"
    for target, reason in _ANON_INODE_REASONS.items():
        if target in open_targets:
            yield reason
    for device, reason in _DEVICE_REASONS.items():
        if any(path.startswith(device) for path in open_targets):
            yield reason


def _command(proc_dir: str) -> str:
    with open(f"{proc_dir}/cmdline", "rb") as file:
        words = file.read(200).split(b"\0")
    return b" ".join(words).decode(errors="replace").strip() or "?"


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


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
    processes = []
    for name in os.listdir("/proc"):
        if (
            name.isdigit()
            and int(name) not in exclude
            and mount_id_at(f"/proc/{name}/root") == there
        ):
            with suppress(OSError), open(f"/proc/{name}/comm", encoding="utf-8") as file:
                processes.append(f"{file.read().strip()} (pid {name})")
    return processes


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

"""What of a live machine CRIU cannot carry: found before anything is frozen, with what helps."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from ortet.errors import Conflict
from ortet.machines.kernels.livemounts import mount_at, mounts_of

_RINGS = (
    "start it without io_uring (node and all that use libuv: UV_USE_IO_URING=0; PostgreSQL 18: "
    "io_method=worker)"
)
_ANON = {
    "anon_inode:[io_uring]": ("it uses io_uring", _RINGS),
    "anon_inode:[fanotify]": ("it watches files with fanotify", "use inotify or polling"),
    "anon_inode:[userfaultfd]": ("it uses userfaultfd", "start it without"),
    "anon_inode:[perf_event]": ("it is measuring with perf", "end the measurement"),
    "anon_inode:kvm-vm": ("it runs a virtual machine", "stop that first"),
    "anon_inode:bpf-map": ("it has loaded BPF programs", "start it without"),
}
_ENDING = "its first thread has ended and others have not"
_FORK = ("it is a fork of a Python kernel, or one has started it", "keep or close the fork")
_WAIT = "stop it, or commit when it has ended"
_PATIENCE, _MOMENT = 5.0, 0.001  # seconds
_INOTIFY = "anon_inode:inotify"
_DEVICES = {
    "/dev/fuse": ("it serves a FUSE file system", "unmount that first"),
    "/dev/nvidia": ("it uses a graphics card", "keep such work outside of the machine"),
    "/dev/dri": ("it uses a graphics card", "keep such work outside of the machine"),
    "/dev/kfd": ("it uses a graphics card", "keep such work outside of the machine"),
}


class Obstacle(msgspec.Struct, frozen=True):
    """One process that cannot be carried, and why. `pid` is its number inside the machine."""

    pid: int
    command: str
    what: str
    help: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}): {self.what}; {self.help}"


class Findings(msgspec.Struct, frozen=True):
    """What stands in the way, and whether any process watches files: CRIU must then search them."""

    obstacles: list[Obstacle] = []
    watching: bool = False

    @property
    def ending(self) -> bool:
        """Is there nothing but processes that have ended in part?"""
        return bool(self.obstacles) and all(one.what == _ENDING for one in self.obstacles)


def look(init: int) -> Findings:
    """At every process of the machine whose pid 1 is `init`."""
    inside = f"/proc/{init}/root/proc"
    users = _link(f"{inside}/1/ns/user")
    mounts = mounts_of(init)
    found: list[Obstacle] = []
    watching = False
    for name in os.listdir(inside):
        if name.isdigit():
            with suppress(OSError):  # it has just ended
                place = f"{inside}/{name}"
                if _is_ending(place):
                    found.append(Obstacle(int(name), _command(place), _ENDING, _WAIT))
                    continue
                opened = _opened(place)
                watching |= _INOTIFY in opened
                reasons = [*_reasons(place, users, opened)]
                if mount_at(f"{place}/root") not in mounts | {-1}:
                    reasons.append(_FORK)
                found += [
                    Obstacle(int(name), _command(place), what, help_) for what, help_ in reasons
                ]
    return Findings(found, watching)


def check(init: int) -> Findings:
    """Conflict("cannot_freeze") that names what is in the way; waits for what is about to end."""
    until = time.monotonic() + _PATIENCE
    found = look(init)
    while found.ending and time.monotonic() < until:
        time.sleep(_MOMENT)
        found = look(init)
    if found.obstacles:
        raise Conflict(
            "cannot_freeze",
            "this machine cannot be frozen with its processes: "
            + "; ".join(map(str, found.obstacles[:5]))
            + "; or stop them and commit again",
            obstacles=[msgspec.to_builtins(one) for one in found.obstacles],
        )
    return found


def _is_ending(place: str) -> bool:
    """A process of several threads whose first has ended, and not all others: CRIU refuses it."""
    with open(f"{place}/stat", "rb") as file:
        state = file.read().rpartition(b")")[2].split()[0]
    return state in b"ZX" and len(os.listdir(f"{place}/task")) > 1


def _opened(place: str) -> set[str]:
    return {_link(f"{place}/fd/{fd}") for fd in os.listdir(f"{place}/fd")}


def _reasons(place: str, users: str, opened: set[str]) -> Iterator[tuple[str, str]]:
    if _link(f"{place}/ns/user") != users:
        yield "it has a user namespace of its own", "switch its sandbox off, or stop it"
    with open(f"{place}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("TracerPid:") and line.split()[1] != "0":
                yield "a debugger is attached to it", "detach strace, gdb or the like"
    for target, reason in _ANON.items():
        if target in opened:
            yield reason
    for device, reason in _DEVICES.items():
        if any(path.startswith(device) for path in opened):
            yield reason


def _command(place: str) -> str:
    with open(f"{place}/cmdline", "rb") as file:
        words = file.read(200).split(b"\0")
    return b" ".join(words).decode(errors="replace").strip() or "?"


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""

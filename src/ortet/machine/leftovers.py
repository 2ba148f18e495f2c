"""What crashes left in the local part of a store: homes of no workspace, half layers, sockets."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from ortet.machine.cgroups import recorded, remove_group
from ortet.machine.dirs import STAGE, directory, remove

_LOCKS = ("lock", "open", "turn")
_VIEW = "root"


class Leftover(msgspec.Struct, frozen=True):
    """Something nobody uses any more."""

    what: Literal["home", "stage", "socket", "process", "group"]
    path: str
    pid: int = 0


def find_leftovers(store: Path, machines: Collection[str]) -> list[Leftover]:
    """`machines` are the ids of all machines that the catalog knows; what is locked is in use."""
    local = store / "local"
    return [*_homes(local / "machines", machines), *_stages(local), *_sockets(local / "signal")]


def clean(leftovers: Iterable[Leftover]) -> int:
    """Remove them; returns how many are gone."""
    done = 0
    for leftover in leftovers:
        path = Path(leftover.path)
        with suppress(FileNotFoundError, ProcessLookupError):
            if leftover.what == "process":
                os.kill(leftover.pid, signal.SIGKILL)
            elif leftover.what == "group":
                remove_group(path)
            else:
                with directory(path.parent) as at:
                    remove(at, os.fsencode(path.name))
        done += 1
    return done


def _homes(place: Path, machines: Collection[str]) -> Iterator[Leftover]:
    for home in sorted(place.iterdir()) if place.is_dir() else ():
        if not home.is_dir() or _in_use(home):
            continue
        pid = _supervisor(home)
        if pid:
            yield Leftover("process", str(home), pid)
        for group in recorded(home):
            if group.is_dir():
                yield Leftover("group", str(group))
        if home.name not in machines:
            yield Leftover("home", str(home))


def _in_use(home: Path) -> bool:
    """Does a process hold one of its locks?"""
    for name in _LOCKS:
        with suppress(FileNotFoundError), (home / name).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def _supervisor(home: Path) -> int:
    """The pid of a supervisor that outlived its hub, which no way is known to come about; 0."""
    try:
        pid = int(os.readlink(home / _VIEW).split("/")[2])
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return 0
    return pid if b"zygote.py" in command else 0


def _stages(local: Path) -> Iterator[Leftover]:
    """Directories that were being built when their process died."""
    begin = os.fsdecode(STAGE)
    for place in (local, local / "bases", local / "machines"):
        for name in sorted(os.listdir(place)) if place.is_dir() else ():
            half = place.name == "bases" and name.endswith(".new")
            if (name.startswith((begin, "probe-")) or half) and not _built_by_someone(place):
                yield Leftover("stage", str(place / name))


def _built_by_someone(place: Path) -> bool:
    lock = place / "build.lock"
    if not lock.exists():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _sockets(place: Path) -> Iterator[Leftover]:
    """Sockets whose listener is dead."""
    for path in sorted(place.glob("*.sock")) if place.is_dir() else ():
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(str(path))
            except OSError as error:
                if error.errno == errno.ECONNREFUSED:
                    yield Leftover("socket", str(path))

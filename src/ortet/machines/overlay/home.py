"""A private machine's own directory: which layers it rests on, its upper directories, its lock."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from msgspec.structs import replace

from ortet._util.codec import Record, decode, encode
from ortet.errors import Conflict, Corrupt
from ortet.history.records import System
from ortet.history.tree.tree import Trees
from ortet.machines.base import Loss
from ortet.machines.dirfd import directory, remove
from ortet.machines.overlay.delta import carried, write
from ortet.machines.overlay.layers import Bases, Stack
from ortet.machines.overlay.system_diff import layer_of
from ortet.objects.base import Objects

CARRY_FILES = 2000
CARRY_BYTES = 64 << 20
"""Hardlinked files that every fresh upper directory gets a copy of; see `delta.carried`."""

_INNER = ("upper", "work")
_OUTER = ("host", "hostwork")
_BRANCH = "branch"
_BRANCHES = (_BRANCH, f"{_BRANCH}work", f"{_BRANCH}stack")
_RECORD = "machine"
_LOCK = "lock"


class Standing(Record, frozen=True):
    """What a machine is made of; replaced as a whole, so that it is always one or the other."""

    upper: int  # number of the upper directory in use
    stack: Stack  # what lies below it
    system: System | None = None  # what lies between the host and its system
    ignoring: bool = False  # it may hold files that are no state, above or below
    outer: int = 0  # number of the upper directories over the host's own


class Home:
    """The files of a machine. The lock is held from `lock` until `close`."""

    def __init__(self, objects: Objects, trees: Trees, place: Path) -> None:
        self.place = place
        self._objects = objects
        self._trees = trees
        self._lock = -1

    def lock(self) -> None:
        """Conflict while another process, or another handle of this one, has it open."""
        fd = os.open(self.place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Conflict(
                "machine_open",
                "this workspace's machine is open already, here or in another process: close it "
                "there first",
            ) from None
        self._lock = fd

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def read(self) -> Standing | None:
        """None when the machine was never opened."""
        try:
            return decode(Standing, (self.place / _RECORD).read_bytes())
        except FileNotFoundError:
            return None

    def write(self, standing: Standing) -> None:
        fresh = self.place / f"{_RECORD}.new"
        fresh.write_bytes(encode(standing))
        fresh.rename(self.place / _RECORD)

    def upper(self, number: int) -> Path:
        return self.place / f"upper-{number}"

    def work(self, number: int) -> Path:
        return self.empty(f"work-{number}")

    def empty(self, name: str) -> Path:
        """An empty directory: with what a mount left in its work directory the next is refused."""
        place = self.place / name
        try:
            place.mkdir()
        except FileExistsError:
            self._remove(name)
            place.mkdir()
        return place

    def drop(self, name: str) -> None:
        """Remove one of its directories, if it is there."""
        with suppress(FileNotFoundError):
            self._remove(name)

    def fresh(self, number: int, stack: Stack, bases: Bases) -> list[Loss]:
        """A new upper directory for this stack; what it could not be given."""
        return self._fill(self.upper(number).name, stack, bases)

    def _fill(self, name: str, stack: Stack, bases: Bases) -> list[Loss]:
        side = bases.side(stack.image)
        items, groups = carried(self._trees, side)
        losses = []
        if len(items) > CARRY_FILES or sum(item.entry.size for item in items) > CARRY_BYTES:
            why = "there are too many hardlinks: a write through one name is not seen by the others"
            losses.append(Loss("", "hardlink", why))
            items, groups = items[:1], []
        place = self.empty(name)
        return losses + write(self._objects, place, items, groups)

    # branches: the files of kernels that forked, as long as they live

    def branch(self, number: int, stack: Stack, bases: Bases) -> tuple[str, str]:
        """An upper and a work directory for a fork of a kernel; their names."""
        upper, work = self.branch_upper(number).name, f"{_BRANCH}work-{number}"
        self._fill(upper, stack, bases)
        self.empty(work)
        note = self.place / f"{_BRANCH}stack-{stack.layers[0]}"
        if not note.exists():  # one for all who rest on it; it stays until the machine is closed
            note.write_bytes(encode(stack))
        return upper, work

    def branch_upper(self, number: int) -> Path:
        return self.place / f"{_BRANCH}-{number}"

    def take_branch(self, number: int, upper: int) -> None:
        """Make its upper directory one of the machine's."""
        self._remove(self.upper(upper).name)
        self.branch_upper(number).rename(self.upper(upper))

    def drop_branch(self, number: int | None = None) -> None:
        """One, or all that a killed process left."""
        for name in os.listdir(self.place):
            kind, _, which = name.partition("-")
            if kind in _BRANCHES and (number is None or which == str(number)):
                with suppress(OSError):
                    self._remove(name)

    def layers(self) -> set[str]:
        """All layers that this machine and its branches rest on."""
        found: set[str] = set()
        standing = self.read()
        if standing is not None:
            found.update(standing.stack.layers)
            if standing.system is not None:
                found.update(map(layer_of, standing.system.layers))
            for path in self.place.glob(f"{_BRANCH}stack-*"):
                with suppress(FileNotFoundError, Corrupt):
                    found.update(decode(Stack, path.read_bytes()).layers)
        return found

    def recover(self, standing: Standing, bases: Bases, machine: str) -> Standing:
        """The standing after a process was killed while it changed it."""
        name = layer_name(machine, standing.upper)
        if not self.upper(standing.upper).is_dir():
            stack = bases.known(name)
            if stack is not None:  # it had become a layer, on which forks may rest
                standing = replace(standing, upper=standing.upper + 1, stack=stack)
                self.fresh(standing.upper, stack, bases)
                self.write(standing)
            elif (bases.root / name).is_dir():
                (bases.root / name).rename(self.upper(standing.upper))
            else:
                raise Corrupt(
                    "machine_broken",
                    f"the files of machine {machine} are gone from {self.place}: drop the "
                    "workspace and make it again from its branch",
                )
        self.tidy(standing)
        self.drop_branch()
        return standing

    def outer(self, standing: Standing, at: str) -> str:
        """The name of the upper directory over a directory of the host."""
        return f"host-{standing.outer}-{quote(at, safe='')}"

    def tidy(self, standing: Standing) -> None:
        """Remove upper directories that are no longer, or not yet, in use."""
        for name in os.listdir(self.place):
            kind, number, *_ = *name.split("-", 2), ""
            used = standing.upper if kind in _INNER else standing.outer
            if kind in _INNER + _OUTER and number != str(used):
                with suppress(OSError):
                    self._remove(name)

    def _remove(self, name: str) -> None:
        with directory(self.place) as at:
            remove(at, name.encode())


def layer_name(machine: str, number: int) -> str:
    """The name under which a machine's upper directory becomes a layer."""
    return f"{machine}-{number}"

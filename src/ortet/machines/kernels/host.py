"""What a Python kernel needs of a machine: to be started inside, and layers for its forks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from ortet.errors import Invalid, Unavailable, Unsupported
from ortet.history.records import Image
from ortet.ids import Oid
from ortet.machines.standalone.process_tree import kill_run

FDS = 4
"""A kernel's descriptors: stdin, stdout, stderr, and the socket it answers on."""

VENVS = (".venv", "venv")


Seen = tuple[Oid, Image]


Residents = Callable[[], Collection[int]]


class Branch(msgspec.Struct, frozen=True):
    """Files for one fork: a directory to make its root, and what keeps the mounts there alive. Both
    are open here until it is dropped."""

    number: int
    root: int
    namespace: int


class Growing(msgspec.Struct, frozen=True):
    """Layers that nobody writes to any more: `grow` makes files upon them for one fork.

    `moved`: the machine itself went on to new ones, so its kernels have to follow. `instead`: the
    fork that is forked has to, to this branch.
    """

    grow: Callable[[], Branch]
    moved: bool = False
    instead: Branch | None = None


class Ends(NamedTuple):
    """Our ends of a kernel's socket and streams; `theirs` are the others, not yet given away."""

    sock: socket.socket
    out: int
    err: int
    theirs: list[int]


class Entered(NamedTuple):
    """A kernel's process, and how to reach it."""

    ends: Ends
    pid: int
    pidfd: int


class Seat(ABC):
    """One thread at a time, but for `end`. `place` is the workspace as processes inside see it,
    `view` where the host can read it."""

    engine: str
    place: str
    view: Path
    contained = True  # its processes end with the hub by themselves
    carries = False  # its processes are part of what is frozen

    @abstractmethod
    def enter(self, name: str, argv: Sequence[str], *, env: Mapping[str, str]) -> Entered:
        """Start an interpreter. OSError when it cannot be executed."""

    def find(self, name: str) -> Entered | None:
        """One that is there already, as after a restore of a machine with its processes."""
        del name
        return None

    def last_words(self, name: str) -> str:
        """What one that did not start said, where it cannot be read at its streams."""
        del name
        return ""

    def around_freeze(
        self, check: Callable[[], None], leave: Callable[[], None], welcome: Callable[[], None]
    ) -> None:
        """To be called before and after what lives here is frozen; `check` well before."""
        del check, leave, welcome

    @abstractmethod
    def end(self, pid: int, mark: str, spare: Collection[int]) -> None:
        """Kill it with all it started, but for other kernels; -1 for one that has ended."""

    @abstractmethod
    def code(self, pid: int) -> int | None:
        """How one that was started here ended; called once. None: nobody knows."""

    # files of their own for forks: what a machine without them refuses

    def number(self, pid: int, pidfd: int) -> int:
        """Under which `end` knows a process that a kernel told of."""
        del pidfd
        return pid

    def glance(self, of: Branch | None = None) -> Seen:
        """What the machine's files are now, or those of a fork; for `branching`."""
        del of
        raise no_fork(self.engine)

    def branching(
        self, residents: Residents, seen: Seen, of: Branch | None = None
    ) -> AbstractContextManager[Growing]:
        """Files for forks, as they were `seen`. `residents` are the kernels that work on them, and
        can follow; asked for at need.

        What changes there later shows neither in the machine nor in another branch.
        """
        del residents, seen, of
        raise no_fork(self.engine)

    def basis(self, branch: Branch) -> Oid:
        """The image of the machine that a branch began from."""
        del branch
        raise no_fork(self.engine)

    def check_return(self, pid: int) -> None:
        """Conflict when a fork has what it cannot take along to the machine's own files."""
        del pid

    def take(self, branch: Branch, residents: Collection[int]) -> int:
        """Make a branch's files those of the machine; returns the machine's root, open."""
        del branch, residents
        raise no_fork(self.engine)

    def drop(self, branch: Branch) -> None:
        """Let go of a branch and delete its files, or what `take` left of it; once."""
        del branch


Launch = Callable[..., tuple[int, int]]
"""(argv, *, env, fds) -> pid inside and pidfd: starts a program that stays, in the workspace, with
`fds` as its descriptors from 0 on and the right to change its root directory."""


def enter_by(launch: Launch, argv: Sequence[str], env: Mapping[str, str]) -> Entered:
    """Start an interpreter that has its socket and streams from us."""
    ends = open_ends()
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    out, err, sock = ends.theirs
    try:
        pid, pidfd = launch(argv, env=env, fds=[null, out, err, sock])
    except BaseException:
        close_ends(ends)
        raise
    finally:
        for fd in (null, out, err, sock):
            os.close(fd)
    return Entered(ends._replace(theirs=[]), pid, pidfd)


def no_fork(engine: str) -> Unsupported:
    return Unsupported(
        "no_kernel_fork",
        f"engine {engine!r} cannot give the fork of a kernel files of its own: use a private "
        "workspace with engine='overlay'; `ortet doctor` says whether this host can",
    )


class HostSeat(Seat):
    """For machines whose commands run on the host itself."""

    contained = False

    def __init__(self, engine: str, place: Path) -> None:
        self.engine = engine
        self.place = str(place)
        self.view = place
        self._started: dict[int, subprocess.Popen[bytes]] = {}

    def enter(self, name: str, argv: Sequence[str], *, env: Mapping[str, str]) -> Entered:
        del name
        return enter_by(self._launch, argv, env)

    def _launch(
        self, argv: Sequence[str], *, env: Mapping[str, str], fds: Sequence[int]
    ) -> tuple[int, int]:
        number = fds[FDS - 1]
        process = subprocess.Popen(
            list(argv),
            cwd=self.place,
            env={**env, "ORTET_KERNEL_FD": str(number)},
            stdin=fds[0],
            stdout=fds[1],
            stderr=fds[2],
            pass_fds=[number],
            start_new_session=True,
        )
        try:
            pidfd = os.pidfd_open(process.pid)
        except (AttributeError, OSError) as error:
            process.kill()
            process.wait()
            raise Unsupported(
                "no_pidfd", "a kernel needs Linux 5.3 or later: run scripts with run() instead"
            ) from error
        self._started[process.pid] = process
        return process.pid, pidfd

    def end(self, pid: int, mark: str, spare: Collection[int]) -> None:
        kill_run(mark, pid, spare)
        with suppress(ProcessLookupError):
            if pid > 0:
                os.kill(pid, signal.SIGKILL)

    def code(self, pid: int) -> int | None:
        process = self._started.pop(pid, None)
        return None if process is None else process.wait()


def open_ends() -> Ends:
    ours, theirs = socket.socketpair()
    made: list[int] = []
    try:
        for _ in range(2):
            made += os.pipe()
    except BaseException:
        for fd in made:
            os.close(fd)
        ours.close()
        theirs.close()
        raise
    out, their_out, err, their_err = made
    return Ends(ours, out, err, [their_out, their_err, theirs.detach()])


def close_ends(ends: Ends) -> None:
    ends.sock.close()
    os.close(ends.out)
    os.close(ends.err)


def python_of(seat: Seat, asked: str | None) -> str:
    """The interpreter for a kernel: the one asked for, the workspace's own, or this one."""
    if asked is not None:
        if not asked or "\0" in asked:
            raise Invalid("bad_python", "python is no program: give its name or path")
        return asked
    for name in VENVS:
        if os.path.lexists(seat.view / name / "bin" / "python"):
            return f"{seat.place}/{name}/bin/python"
    if not sys.executable:
        raise Unavailable("no_python", "this process does not know its interpreter: give python=…")
    return sys.executable

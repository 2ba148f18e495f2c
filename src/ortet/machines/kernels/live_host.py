"""A live machine as the seat of Python kernels: they listen inside, and are frozen with it."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ortet.errors import NotFound, OrtetError
from ortet.ids import Oid
from ortet.machines.control.client import Indoors
from ortet.machines.kernels.host import Branch, Ends, Entered, Growing, Residents, Seat, Seen
from ortet.machines.standalone.process_tree import kill_run

if TYPE_CHECKING:
    from ortet.machines.kernels.livebranches import LiveBranches

_START = 30.0  # seconds until a new interpreter listens
_LOOK = 0.005  # between two looks whether it does
_ENDING = 5.0  # seconds until pid 1 has reaped one that was killed
_NOBODY = "-"  # no run's mark
_CREDENTIALS = struct.Struct("3i")


class LiveSeat(Seat):
    """`indoors` is asked each time: after a restore another process is the machine's pid 1."""

    engine = "criu"
    carries = True

    def __init__(
        self,
        indoors: Callable[[], Indoors],
        place: str,
        view: Callable[[], Path],
        files: LiveBranches,
    ) -> None:
        self._files = files
        self.place = place
        self._indoors = indoors
        self._view = view
        self._names: dict[int, str] = {}
        self._visitors: list[tuple[Callable[[], None], ...]] = []

    @property
    def view(self) -> Path:  # type: ignore[override]
        return self._view()

    def around_freeze(
        self, check: Callable[[], None], leave: Callable[[], None], welcome: Callable[[], None]
    ) -> None:
        self._visitors.append((check, leave, welcome))

    def check_freeze(self) -> None:
        for check, _, _ in self._visitors:
            check()

    @contextmanager
    def away(self) -> Iterator[None]:
        """For the time of a freeze nobody is connected to a kernel; Conflict while one is busy."""
        with ExitStack() as gone:
            for _, leave, welcome in self._visitors:
                leave()
                gone.callback(welcome)
            yield

    def enter(self, name: str, argv: Sequence[str], *, env: Mapping[str, str]) -> Entered:
        given = {**env, "ORTET_KERNEL_AT": f"/{_socket(name)}"}
        try:
            job = self._indoors().spawn(_job(name), argv, env=given, cwd=self.place)
        except NotFound as error:
            raise FileNotFoundError(2, "No such file or directory") from error
        until = time.monotonic() + _START
        while time.monotonic() < until and job.wait(0) is None:
            if (entered := self.find(name)) is not None:
                return entered
            time.sleep(_LOOK)
        raise OSError(0, self.last_words(name).strip()[-500:] or "it ended without a word")

    def find(self, name: str) -> Entered | None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(f"/proc/{self._indoors().pid}/root/{_socket(name)}")
            size = _CREDENTIALS.size
            told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            pid = _CREDENTIALS.unpack(told)[0]
            pidfd = os.pidfd_open(pid)
        except OSError:
            sock.close()
            return None
        self._names[pid] = name
        out, their_out = os.pipe()
        err, their_err = os.pipe()
        return Entered(Ends(sock, out, err, [their_out, their_err]), pid, pidfd)

    def last_words(self, name: str) -> str:
        with suppress(OrtetError):
            job = self._indoors().job(_job(name))
            return job.logs().decode("utf-8", "replace")
        return ""

    def number(self, pid: int, pidfd: int) -> int:
        """The host's: one inside says another."""
        del pid
        with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))

    def end(self, pid: int, mark: str, spare: Collection[int]) -> None:
        """From outside: pid 1 would take forks of a kernel for what it started."""
        kill_run(mark or _NOBODY, pid, spare)
        name = self._names.pop(pid, None)
        with suppress(OrtetError):  # a fork that took the place of another is no job
            if name is not None:
                self._indoors().job(_job(name)).wait(_ENDING)

    # files for forks

    def glance(self, of: Branch | None = None) -> Seen:
        return self._files.glance(of)

    def branching(
        self, residents: Residents, seen: Seen, of: Branch | None = None
    ) -> AbstractContextManager[Growing]:
        return self._files.branching(residents, seen, of)

    def basis(self, branch: Branch) -> Oid:
        return self._files.basis(branch)

    def check_return(self, pid: int) -> None:
        self._files.check_return(pid)

    def take(self, branch: Branch, residents: Collection[int]) -> int:
        return self._files.take(branch, residents)

    def drop(self, branch: Branch) -> None:
        self._files.drop(branch)

    def code(self, pid: int) -> int | None:
        del pid
        return None


def _job(name: str) -> str:
    return f"kernel {name}"


def _socket(name: str) -> str:
    """Short, as paths of sockets have to be."""
    return f"run/ortet/kernel-{hashlib.sha256(name.encode()).hexdigest()[:16]}.sock"

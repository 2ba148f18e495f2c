"""The Guard of a live machine: begins it, fresh or from a dump, and asks its pid 1."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ortet.errors import OrtetError, Unavailable
from ortet.machines.control.client import Indoors
from ortet.machines.live.cgroups import Group
from ortet.machines.live.criu.connections import has_connections
from ortet.machines.live.criu.errors import not_restored
from ortet.machines.live.criu.file_locks import Relock
from ortet.machines.live.criu.rpc import Failed, Worker
from ortet.machines.live.network.slirp import Outlet
from ortet.machines.live.supervisor_client import Keeper, Starting
from ortet.machines.overlay.mount_plan import parse_mounts
from ortet.machines.overlay.supervisor_client import readable
from ortet.machines.standalone.live_supervisor import NET_FD

LAZY = 64 << 20
"""Bytes of memory from which on processes begin before all of it is there."""

_PAGES = "lazy-pages.socket"
_PATIENCE = 30.0
_BY_CRIU = frozenset(("proc", "devpts", "sysfs", "mqueue"))


class LiveGuard:
    """`begin` waits until the machine's pid 1 can be asked, and returns its pid; `group` has it
    within its limits, `outlet` is its way out, begun in the network of process `host`."""

    def __init__(
        self, begin: Callable[[], int], place: str, *, group: Group, outlet: Outlet, host: int
    ) -> None:
        self.pid = 0
        self.group = group
        self.outlet = outlet
        self._host = host
        self._place = place
        self.external: list[str] = []
        """Mount points inside that CRIU must be handed when it restores."""
        self._begin = begin
        self._begun = False
        self._pidfd = -1
        self._pager = -1
        self._indoors: Indoors | None = None

    def ready(self) -> None:
        if self._indoors is not None:
            return
        self._begun = True
        self.outlet.ready(self._host)  # before anything runs that counts on it
        self.pid = self._begin()
        self._pidfd = os.pidfd_open(self.pid)
        self.outlet.belong(self.pid, self._pidfd)
        self.group.tighten()
        mounts = parse_mounts(Path(f"/proc/{self.pid}/mountinfo").read_bytes())
        self.external = [m.at for m in mounts if m.at != "/" and m.kind not in _BY_CRIU]
        self._indoors = Indoors(self.pid)
        self._indoors.welcome()  # one that was restored was frozen with its door closed

    def tell(self, pid: int) -> str:
        """Which process has this number inside."""
        with suppress(OSError):
            line = Path(f"/proc/{self.pid}/root/proc/{pid}/cmdline").read_bytes()
            return f"process {pid} ({os.fsdecode(line.replace(bytes(1), b' '))[:80].strip()})"
        return f"process {pid}"

    @property
    def indoors(self) -> Indoors:
        assert self._indoors is not None
        return self._indoors

    def ask(
        self, message: dict[str, Any], fds: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        del fds
        if message["do"] == "unmount":  # its pid 1 is no more than a program in it
            return {"done": False}, []
        return self.indoors.ask({**message, "place": self._place}), []

    def paged_by(self, pager: int, door: Path) -> None:
        """Its memory comes from this process, once that listens."""
        self._pager = os.pidfd_open(pager)
        until = time.monotonic() + _PATIENCE
        while not door.exists():
            if readable(self._pager, 1) or time.monotonic() > until:
                raise Unavailable("no_pager", "CRIU's pager did not start: try again")

    def gather(self) -> None:
        """Wait until all its memory is there: a dump before that would silently lose the rest."""
        if self._pager >= 0:
            readable(self._pager, None)
            os.close(self._pager)
            self._pager = -1

    def close(self) -> None:
        """Kill all of it, and wait until its mounts are released."""
        if not self._begun:
            with suppress(OrtetError):
                self.ready()
        if self._indoors is not None:
            self._indoors.close()
        if self._pidfd >= 0:
            _end(self._pidfd)
            self._pidfd = -1
        if self._pager >= 0:  # without its processes it has nothing to do
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pager, signal.SIGKILL)
            os.close(self._pager)
            self._pager = -1
        self.outlet.close()
        self.group.close()


def start(starting: Starting, place: str, *, group: Group, outlet: Outlet) -> LiveGuard:
    """A machine whose pid 1 begins now; `place` is its workspace, as it sees it."""

    def begin() -> int:
        starting.wait()
        return starting.pid

    outlet.begin(starting.pid)
    return LiveGuard(begin, place, group=group, outlet=outlet, host=starting.pid)


def restore(
    worker: Worker,
    images: Path,
    place: str,
    *,
    group: Group,
    outlet: Outlet,
    work: Path,
    root: Path,
    mounts: Sequence[str],
    keeper: Keeper,
) -> LiveGuard:
    """A machine that goes on from a dump, with mounts that `worker` finds below `root`. Much memory
    comes later, from a pager."""
    external = [f"mnt[{at}]:{root}{at}" for at in mounts]

    def begin() -> int:
        locks, hushed = Relock(images), has_connections(images, closed=True)
        lazy = memory_in(images) >= LAZY
        if lazy:
            guard.paged_by(keeper.pager(images, work), work / _PAGES)

        def restored(pid: int) -> None:
            if hushed:
                keeper.hush(pid, on=False)
            locks.hold(pid)

        try:
            if hushed:
                keeper.hush(worker.pid, on=True)
            pid = worker.restore(
                images,
                work,
                root=root,
                external=external,
                net=NET_FD,
                lazy=lazy,
                restored=restored if locks.needed or hushed else None,
            )
        except Failed as failed:
            raise not_restored(failed) from failed
        try:
            locks.take()
        except BaseException:  # without its locks it would do harm
            _end(os.pidfd_open(pid))
            raise
        return pid

    outlet.begin(worker.pid)
    guard = LiveGuard(begin, place, group=group, outlet=outlet, host=worker.pid)
    return guard


def _end(pidfd: int) -> None:
    """Kill a pid 1, and wait for it: all others of its machine end before it does."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    readable(pidfd, None)
    os.close(pidfd)


def memory_in(images: Path) -> int:
    """Bytes of memory in a dump."""
    return sum(file.stat().st_size for file in images.glob("pages-*.img"))

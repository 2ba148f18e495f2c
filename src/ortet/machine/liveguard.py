"""The Guard of a live machine: begins it, fresh or from a dump, and asks its pid 1."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ortet.errors import Conflict, OrtetError
from ortet.machine.cgroups import Group
from ortet.machine.criurpc import Failed, Worker, messages
from ortet.machine.indoors import Indoors
from ortet.machine.keeper import NET_FD
from ortet.machine.live import Starting
from ortet.machine.view import parse_mounts

_BY_CRIU = frozenset(("proc", "devpts", "sysfs", "mqueue"))


class LiveGuard:
    """`begin` waits until the machine's pid 1 can be asked, and returns its pid; `group` has it
    within its limits."""

    def __init__(self, begin: Callable[[], int], place: str, group: Group) -> None:
        self.pid = 0
        self.group = group
        self._place = place
        self.external: list[str] = []
        """Mount points inside that CRIU must be handed when it restores."""
        self._begin = begin
        self._begun = False
        self._pidfd = -1
        self._indoors: Indoors | None = None

    def ready(self) -> None:
        if self._indoors is not None:
            return
        self._begun = True
        self.pid = self._begin()
        self._pidfd = os.pidfd_open(self.pid)
        self.group.tighten()
        mounts = parse_mounts(Path(f"/proc/{self.pid}/mountinfo").read_bytes())
        self.external = [m.at for m in mounts if m.at != "/" and m.kind not in _BY_CRIU]
        self._indoors = Indoors(self.pid)
        self._indoors.welcome()  # one that was restored was frozen with its door closed

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

    def close(self) -> None:
        """Kill all of it, and wait until its mounts are released."""
        if not self._begun:
            with suppress(OrtetError):
                self.ready()
        if self._indoors is not None:
            self._indoors.close()
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            poll.poll()
            os.close(self._pidfd)
            self._pidfd = -1
        self.group.close()


def start(starting: Starting, place: str, group: Group) -> LiveGuard:
    """A machine whose pid 1 begins now; `place` is its workspace, as it sees it."""

    def begin() -> int:
        starting.wait()
        return starting.pid

    return LiveGuard(begin, place, group)


def restore(
    worker: Worker,
    images: Path,
    place: str,
    *,
    group: Group,
    work: Path,
    root: Path,
    mounts: Sequence[str],
) -> LiveGuard:
    """A machine that goes on from a dump, with mounts that `worker` finds below `root`."""
    external = [f"mnt[{at}]:{root}{at}" for at in mounts]

    def begin() -> int:
        try:
            return worker.restore(images, work, root=root, external=external, net=NET_FD)
        except Failed as failed:
            raise _not_restored(failed) from failed

    return LiveGuard(begin, place, group)


def _not_restored(failed: Failed) -> Conflict:
    why = "; ".join(messages(failed.log)[-3:]) or "it said no reason"
    return Conflict(
        "cannot_restore",
        f"CRIU could not bring the processes back ({why}): restore the files alone with "
        "only={'files'}, or on the host that made the commit",
        log=str(failed.log),
    )

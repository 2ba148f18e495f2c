"""Has CRIU write down a machine that runs, again when it met something that passes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from ortet.machines.control.connection import unfrozen
from ortet.machines.live.criu import preflight
from ortet.machines.live.criu.connections import has_connections, sees_connections
from ortet.machines.live.criu.errors import not_frozen, passing, patiently
from ortet.machines.live.criu.rpc import Failed, Worker
from ortet.machines.live.process import LiveGuard
from ortet.machines.live.supervisor_client import Keeper


class LiveDump:
    """Of one machine. `worker` gives a CRIU that waits for this."""

    def __init__(
        self,
        guard: LiveGuard,
        keeper: Keeper,
        *,
        lock: str,
        worker: Callable[[], Worker],
    ) -> None:
        self._guard = guard
        self._keeper = keeper
        self._lock = lock
        self._worker = worker

    def write(
        self,
        images: Path,
        frozen: Callable[[], None],
        *,
        watched: Sequence[str],
        anew: Callable[[], object],
    ) -> None:
        """To a directory, which `anew` makes empty; `frozen` is called while it stands still, the
        last time for what is then there. Conflict when it cannot be; its processes go on."""
        pid = self._guard.pid
        silent = sees_connections(pid)
        for again in patiently():
            try:
                self._once(images, frozen, watched, silent=silent)
                if silent or not has_connections(images):
                    return
            except Failed as failed:
                if not (again and passing(failed)):
                    raise not_frozen(failed) from failed
            preflight.check(pid)
            anew()
            silent = True
        raise AssertionError("not reached")

    def _once(
        self, images: Path, frozen: Callable[[], None], watched: Sequence[str], *, silent: bool
    ) -> None:
        guard, worker = self._guard, self._worker()
        net = os.stat(f"/proc/{guard.pid}/ns/net").st_ino
        external = [f"net[{net}]:extnet", *(f"mnt[{at}]:{at}" for at in guard.external)]
        with unfrozen(self._lock, fcntl.LOCK_EX), guard.outlet.held():
            guard.indoors.leave()
            try:
                with self._keeper.silence(guard.pid) if silent else nullcontext():
                    worker.dump(
                        guard.pid, images, external=external, frozen=frozen, watched=watched
                    )
            finally:
                guard.indoors.welcome()

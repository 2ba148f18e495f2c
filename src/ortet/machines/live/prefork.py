"""Forks of a live machine that start early, while the dump that they start from is being stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Thread
from typing import NamedTuple, Protocol

from ortet.errors import Conflict, OrtetError
from ortet.machines.base import Loss, Machine, MachineSpec
from ortet.machines.live.context import Dump, LiveEngineContext
from ortet.machines.overlay.home import LayerLayout
from ortet.machines.overlay.pending_machines import PendingMachines

# Runs one background task at a time in a daemon thread.
#
# It is a module of its own because the live machine uses it for several unrelated tasks.


class BackgroundTask:
    """Runs tasks one after the other, each in a thread; `start` waits for the task before it."""

    def __init__(self) -> None:
        self._thread: Thread | None = None

    def start(self, task: Callable[[], object]) -> None:
        """Wait for the task before it, then run this one in a thread."""
        self.wait()
        self._thread = Thread(target=task, name="ortet-errand", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the running task has ended."""
        running, self._thread = self._thread, None
        if running is not None:
            running.join()


class StartForks(Protocol):
    """Starts machines on the given layers from a dump; starts all of them or none."""

    def __call__(
        self, specs: Sequence[MachineSpec], layout: LayerLayout, processes: bytes = b""
    ) -> PendingMachines: ...


class _StartedForks(NamedTuple):
    pending: PendingMachines
    started: Future[None]
    losses: list[Loss]


class PreforkedMachines:
    """The early started forks of one machine.

    `announced_specs` are the forks that the caller will ask for after the next snapshot.
    """

    def __init__(self, context: LiveEngineContext, start_forks: StartForks) -> None:
        self.announced_specs: Sequence[MachineSpec] = ()
        self._context = context
        self._start_forks = start_forks
        self._started: _StartedForks | None = None
        self._stored_dump = b""

    def announce(self, specs: Sequence[MachineSpec]) -> None:
        """Replace the set of announced forks.

        Machines already started for an earlier announcement are stopped and their homes removed.
        """
        begun, self._started = self._started, None
        if begun is not None:
            begun.started.exception()  # waits for the start to end
            begun.pending.cancel()
            for spec in self.announced_specs:
                with suppress(OSError):
                    spec.home.rmdir()
        self.announced_specs = specs

    def start(self, dump: Dump, fork_layout: Callable[[], tuple[LayerLayout, list[Loss]]]) -> None:
        """Start the announced forks from a dump that is not stored yet.

        `fork_layout` returns the layers that they start on. If the start fails, the forks are
        started later, when they are asked for.
        """
        if not self.announced_specs:
            return
        self.announce(self.announced_specs)
        ground, key = self._context, os.fsencode(dump.images.name)
        ground.local_dumps[key] = dump
        try:
            with suppress(OrtetError), ground.layer_store.prevent_prune():
                standing, losses = fork_layout()
                coming = self._start_forks(self.announced_specs, standing, key)
                pool = ThreadPoolExecutor(1, "ortet-heirs")
                self._started = _StartedForks(coming, pool.submit(coming.wait_started), losses)
                pool.shutdown(wait=False)
        finally:
            del ground.local_dumps[key]

    def mark_stored(self, processes: bytes) -> None:
        """Record the object id under which the dump was stored."""
        self._stored_dump = processes

    def claim(
        self, specs: Sequence[MachineSpec], processes: bytes
    ) -> tuple[list[Machine], list[Loss]]:
        """Return the early started machines if `specs` are exactly the announced ones.

        Otherwise returns `([], [])`. If starting any of them failed, all are stopped and the error
        is raised. Raises Conflict("fork_moved") if `processes` is not the dump that they started
        from.
        """
        if self._started is None or [one.home for one in specs] != [
            one.home for one in self.announced_specs
        ]:
            return [], []
        begun, self._started = self._started, None
        try:
            begun.started.result()
            if self._stored_dump != processes:
                raise Conflict("fork_moved", "another commit came between: fork again")
        except BaseException:
            begun.pending.cancel()
            raise
        return begun.pending.finish(), begun.losses

"""Forks of a live machine that start early, while the dump that they start from is being stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, NamedTuple, Protocol, TypeVar

from ortet.errors import Conflict, OrtetError
from ortet.machines.base import Loss, MachineSpec
from ortet.machines.live.context import Dump, LiveEngineContext
from ortet.machines.overlay.layers.home import LayerLayout
from ortet.machines.overlay.open_machines import PendingMachines, StartableMachine

M = TypeVar("M", bound=StartableMachine)


class StartForks(Protocol[M]):
    """Starts machines on the given layers from a dump; starts all of them or none."""

    def __call__(
        self, specs: Sequence[MachineSpec], layout: LayerLayout, processes: bytes = b""
    ) -> PendingMachines[M]: ...


class _StartedForks(NamedTuple, Generic[M]):
    pending: PendingMachines[M]
    started: Future[None]
    losses: list[Loss]


class PreforkedMachines(Generic[M]):
    """The early started forks of one machine.

    `announced_specs` are the forks that the caller will ask for after the next snapshot.
    """

    def __init__(self, context: LiveEngineContext, start_forks: StartForks[M]) -> None:
        self.announced_specs: Sequence[MachineSpec] = ()
        self._context = context
        self._start_forks = start_forks
        self._started: _StartedForks[M] | None = None
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
        context, key = self._context, os.fsencode(dump.images.name)
        context.local_dumps[key] = dump
        try:
            with suppress(OrtetError), context.layer_store.prevent_prune():
                layout, losses = fork_layout()
                pending = self._start_forks(self.announced_specs, layout, key)
                pool = ThreadPoolExecutor(1, "ortet-early-forks")
                self._started = _StartedForks(pending, pool.submit(pending.wait_started), losses)
                pool.shutdown(wait=False)
        finally:
            del context.local_dumps[key]

    def mark_stored(self, processes: bytes) -> None:
        """Record the object id under which the dump was stored."""
        self._stored_dump = processes

    def claim(self, specs: Sequence[MachineSpec], processes: bytes) -> tuple[list[M], list[Loss]]:
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

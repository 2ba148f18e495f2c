"""Forks of a live machine that begin before they are asked for: while what they are made from is
being stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, Protocol

from ortet.errors import Conflict, OrtetError
from ortet.machines.base import Loss, Machine, MachineSpec
from ortet.machines.live.context import Dump, LiveEngineContext
from ortet.machines.overlay.home import LayerLayout
from ortet.machines.overlay.pending_machines import PendingMachines


class StartForks(Protocol):
    """Begins machines that stand so, from a dump; all or none."""

    def __call__(
        self, specs: Sequence[MachineSpec], layout: LayerLayout, processes: bytes = b""
    ) -> PendingMachines: ...


class _StartedForks(NamedTuple):
    pending: PendingMachines
    started: Future[None]
    losses: list[Loss]


class PreforkedMachines:
    """Those of one machine. `announced` are the ones that will be asked for."""

    def __init__(self, context: LiveEngineContext, start_forks: StartForks) -> None:
        self.announced_specs: Sequence[MachineSpec] = ()
        self._context = context
        self._start_forks = start_forks
        self._started: _StartedForks | None = None
        self._stored_dump = b""

    def announce(self, specs: Sequence[MachineSpec]) -> None:
        """These, and no others: what was begun goes."""
        begun, self._started = self._started, None
        if begun is not None:
            begun.started.exception()  # which waits
            begun.pending.cancel()
            for spec in self.announced_specs:
                with suppress(OSError):
                    spec.home.rmdir()
        self.announced_specs = specs

    def start(self, dump: Dump, fork_layout: Callable[[], tuple[LayerLayout, list[Loss]]]) -> None:
        """From a dump that nobody has stored yet; `copied` is what they stand on. When it fails,
        they are begun when they are asked for."""
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
        """The dump is in the store now, as this."""
        self._stored_dump = processes

    def claim(
        self, specs: Sequence[MachineSpec], processes: bytes
    ) -> tuple[list[Machine], list[Loss]]:
        """Those that were begun, if it is these; when they could not begin, none is left."""
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

"""Machines on their way: begun, and not waited for yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ortet.machines.base import Loss, Machine
from ortet.machines.overlay.overlaymachine import OverlayMachine

StartedMachine = tuple[OverlayMachine, list[Loss]]


class PendingMachines:
    """All or none. `undo` ends them and removes what was made for them; `wake` waits for what takes
    long, and `remember` is told when all are ready."""

    def __init__(
        self,
        started: Sequence[StartedMachine],
        undo: ExitStack,
        wait_started: Callable[[Sequence[OverlayMachine]], None],
        on_ready: Callable[[Sequence[OverlayMachine]], None],
    ) -> None:
        self._started = started
        self._machines = [machine for machine, _ in started]
        self._undo = undo
        self._wait_started = wait_started
        self._on_ready = on_ready

    def wait_started(self) -> None:
        """The part of `finish` that takes long; one thread may do it while another does its own."""
        self._wait_started(self._machines)

    def finish(self) -> list[Machine]:
        """Wait for them; when one cannot begin, none is left."""
        with self._undo:
            self.wait_started()
            for machine, losses in self._started:
                machine.finish_start(losses)
            self._undo.pop_all()
        self._on_ready(self._machines)
        return list[Machine](self._machines)

    def cancel(self) -> None:
        self._undo.close()

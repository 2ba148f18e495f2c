"""Machines that are started but not yet waited for.

This is a module of its own because the engine and the preforks of a live machine both use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ortet.machines.base import Loss, Machine
from ortet.machines.overlay.overlaymachine import OverlayMachine

StartedMachine = tuple[OverlayMachine, list[Loss]]


class PendingMachines:
    """Machines that start together, all or none.

    Args:
        undo: Stops the machines and removes everything that was created for them.
        wait_started: Does the slow part of the start.
        on_ready: Called when all machines are ready.
    """

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
        """Do the slow part of `finish`. It may run in another thread."""
        self._wait_started(self._machines)

    def finish(self) -> list[Machine]:
        """Wait for the machines. If one cannot start, all are stopped."""
        with self._undo:
            self.wait_started()
            for machine, losses in self._started:
                machine.finish_start(losses)
            self._undo.pop_all()
        self._on_ready(self._machines)
        return list[Machine](self._machines)

    def cancel(self) -> None:
        self._undo.close()

"""Machines on their way: begun, and not waited for yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ortet.machines.base import Loss, Machine
from ortet.machines.overlay.overlaymachine import OverlayMachine

Made = tuple[OverlayMachine, list[Loss]]


class Coming:
    """All or none. `undo` ends them and removes what was made for them; `wake` waits for what takes
    long, and `remember` is told when all are ready."""

    def __init__(
        self,
        made: Sequence[Made],
        undo: ExitStack,
        wake: Callable[[Sequence[OverlayMachine]], None],
        remember: Callable[[Sequence[OverlayMachine]], None],
    ) -> None:
        self._made = made
        self._machines = [machine for machine, _ in made]
        self._undo = undo
        self._wake = wake
        self._remember = remember

    def wake(self) -> None:
        """The part of `finish` that takes long; one thread may do it while another does its own."""
        self._wake(self._machines)

    def finish(self) -> list[Machine]:
        """Wait for them; when one cannot begin, none is left."""
        with self._undo:
            self.wake()
            for machine, losses in self._made:
                machine.ready(losses)
            self._undo.pop_all()
        self._remember(self._machines)
        return list[Machine](self._machines)

    def cancel(self) -> None:
        self._undo.close()

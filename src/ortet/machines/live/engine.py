"""The process engine: machines whose running processes are committed, forked and restored."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from ortet.history.records import Image
from ortet.history.tree.tree import Trees
from ortet.ids import Clock
from ortet.machines.base import Capability, Loss, Spec
from ortet.machines.live.cgroups import remove_recorded
from ortet.machines.live.context import LiveGround
from ortet.machines.live.criu.binary import find_criu, probe_criu
from ortet.machines.live.machine import FORKED, RESTORED, CriuMachine
from ortet.machines.overlay.context import Ground
from ortet.machines.overlay.engine import OverlayEngine
from ortet.machines.overlay.home import Home, Standing
from ortet.machines.overlay.layers import Bases
from ortet.machines.overlay.overlaymachine import OverlayMachine
from ortet.machines.overlay.pending_machines import Coming
from ortet.objects.base import Objects


class CriuEngine(OverlayEngine):
    """For root on Linux, with CRIU 4.2 or newer; `program` is where that is, if not in PATH."""

    name = "criu"

    def __init__(
        self, objects: Objects, trees: Trees, clock: Clock, *, root: Path, program: str = ""
    ) -> None:
        self._program = find_criu(program)
        self._hooks = ""  # of the machines that are being made
        super().__init__(objects, trees, clock, root=root)

    def probe(self) -> list[Capability]:
        if self._probed is None:
            self._probed = probe_criu(self._program)
            if all(one.ok for one in self._probed):
                self._probed = [*self._probed, *super().probe()]
        return self._probed

    def _grounded(self, objects: Objects, trees: Trees, clock: Clock, bases: Bases) -> Ground:
        return LiveGround(objects, trees, clock, bases=bases, criu=self._program)

    def _machine(
        self, spec: Spec, home: Home, standing: Standing, processes: bytes
    ) -> OverlayMachine:
        assert isinstance(self._ground, LiveGround)
        return CriuMachine(
            self._ground,
            spec,
            home,
            standing=standing,
            fork=self.fork,
            begin=self.begin,
            processes=processes,
            hooks=self._hooks or (RESTORED if processes else ""),
        )

    def begin(self, specs: Sequence[Spec], standing: Standing, processes: bytes = b"") -> Coming:
        self._hooks = FORKED
        try:
            return super().begin(specs, standing, processes)
        finally:
            self._hooks = ""

    def remove(self, home: Path) -> None:
        machine = self._open.get(home)
        if machine is not None:
            machine.close()
        remove_recorded(home)
        super().remove(home)

    def close(self) -> None:
        assert isinstance(self._ground, LiveGround)
        self._ground.keeper.close()

    def _wake(self, machines: Sequence[OverlayMachine]) -> None:
        if len(machines) == 1:
            _ready(machines[0])
        else:
            with ThreadPoolExecutor(min(len(machines), os.cpu_count() or 1)) as pool:
                list(pool.map(_ready, machines))

    def _left_behind(self, image: Image) -> list[Loss]:
        del image
        return []

    def _normal(self, spec: Spec) -> Spec:
        return super()._normal(replace(spec, scope="host"))


def _ready(machine: OverlayMachine) -> None:
    assert isinstance(machine, CriuMachine)
    machine.wake()

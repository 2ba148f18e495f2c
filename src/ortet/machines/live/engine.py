"""The engine for live machines: commit, fork and restore running processes with CRIU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from ortet.history.records import Image
from ortet.history.tree.tree import Trees
from ortet.ids import Clock
from ortet.machines.base import Capability, Loss, MachineSpec
from ortet.machines.live.cgroups import remove_recorded_groups
from ortet.machines.live.context import LiveEngineContext
from ortet.machines.live.criu.binary import find_criu, probe_criu
from ortet.machines.live.machine import ON_FORK, ON_RESTORE, LiveMachine
from ortet.machines.overlay.context import EngineContext
from ortet.machines.overlay.engine import OverlayEngine
from ortet.machines.overlay.home import LayerLayout, MachineHome
from ortet.machines.overlay.layers import LayerStore
from ortet.machines.overlay.overlaymachine import OverlayMachine
from ortet.machines.overlay.pending_machines import PendingMachines
from ortet.objects.base import ObjectStore


class CriuEngine(OverlayEngine):
    """Opens live machines. Requires root on Linux, and CRIU 4.2 or newer.

    `program` is the path of CRIU; without it CRIU is looked up in PATH.
    """

    name = "criu"

    def __init__(
        self, objects: ObjectStore, trees: Trees, clock: Clock, *, root: Path, program: str = ""
    ) -> None:
        self._program = find_criu(program)
        self._hook_kind = ""  # hook kind for the machines that are being created
        super().__init__(objects, trees, clock, root=root)

    def probe(self) -> list[Capability]:
        if self._probed is None:
            self._probed = probe_criu(self._program)
            if all(one.ok for one in self._probed):
                self._probed = [*self._probed, *super().probe()]
        return self._probed

    def _make_context(
        self, objects: ObjectStore, trees: Trees, clock: Clock, layer_store: LayerStore
    ) -> EngineContext:
        return LiveEngineContext(objects, trees, clock, layer_store=layer_store, criu=self._program)

    def _machine(
        self, spec: MachineSpec, home: MachineHome, layout: LayerLayout, processes: bytes
    ) -> OverlayMachine:
        assert isinstance(self._context, LiveEngineContext)
        return LiveMachine(
            self._context,
            spec,
            home,
            layout=layout,
            fork=self.fork,
            start_forks=self.start_forks,
            processes=processes,
            hook_kind=self._hook_kind or (ON_RESTORE if processes else ""),
        )

    def start_forks(
        self, specs: Sequence[MachineSpec], layout: LayerLayout, processes: bytes = b""
    ) -> PendingMachines:
        """Start forks of a machine; each of them runs its "on-fork" hooks."""
        self._hook_kind = ON_FORK
        try:
            return super().start_forks(specs, layout, processes)
        finally:
            self._hook_kind = ""

    def remove(self, home: Path) -> None:
        machine = self._open.get(home)
        if machine is not None:
            machine.close()
        remove_recorded_groups(home)
        super().remove(home)

    def close(self) -> None:
        """Stop the supervisor, and with it all machines of this engine."""
        assert isinstance(self._context, LiveEngineContext)
        self._context.supervisor.close()

    def _wait_started(self, machines: Sequence[OverlayMachine]) -> None:
        if len(machines) == 1:
            _wait_machine_started(machines[0])
        else:
            with ThreadPoolExecutor(min(len(machines), os.cpu_count() or 1)) as pool:
                list(pool.map(_wait_machine_started, machines))

    def _service_losses(self, image: Image) -> list[Loss]:
        del image
        return []

    def _normal(self, spec: MachineSpec) -> MachineSpec:
        return super()._normal(replace(spec, scope="host"))


def _wait_machine_started(machine: OverlayMachine) -> None:
    assert isinstance(machine, LiveMachine)
    machine.wait_started()

"""The engine for live machines: commit, fork and restore running processes with CRIU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from ortet.history.tree.tree import Trees
from ortet.ids import Clock
from ortet.machines.base import Capability, Engine, MachineSpec
from ortet.machines.live.cgroups import remove_recorded_groups
from ortet.machines.live.context import LiveEngineContext
from ortet.machines.live.criu.binary import find_criu, probe_criu
from ortet.machines.live.machine import ON_FORK, ON_RESTORE, LiveMachine
from ortet.machines.overlay.context import EngineContext
from ortet.machines.overlay.layers.home import LayerLayout, MachineHome
from ortet.machines.overlay.layers.store import LayerStore
from ortet.machines.overlay.open_machines import OpenMachines, PendingMachines
from ortet.machines.overlay.probe import probe_overlay
from ortet.objects.base import ObjectStore


class CriuEngine(Engine):
    """Opens live machines. Requires root on Linux, and CRIU 4.2 or newer.

    `program` is the path of CRIU; without it CRIU is looked up in PATH. `root` is the store's
    directory; layers are kept in its local part.
    """

    name = "criu"

    def __init__(
        self, objects: ObjectStore, trees: Trees, clock: Clock, *, root: Path, program: str = ""
    ) -> None:
        self._program = find_criu(program)
        local = root.absolute().resolve() / "local"
        layer_store = LayerStore(objects, trees, local / "bases")
        overlay = EngineContext(
            objects, trees, clock, layer_store=layer_store, rootless=False, dumpable=True
        )
        self._context = LiveEngineContext(overlay, criu=self._program)
        self._machines = OpenMachines(
            overlay,
            local,
            self._create,
            wait_started=_wait_started,
            service_losses=lambda _: [],
        )
        self._probed: list[Capability] | None = None

    def probe(self) -> list[Capability]:
        if self._probed is None:
            self._probed = probe_criu(self._program)
            if all(one.ok for one in self._probed):
                overlay = self._context.overlay
                files = probe_overlay(overlay.layer_store.root, overlay.zygote)
                self._probed = [*self._probed, *files]  # the list of CRIU is cached
        return self._probed

    def open(self, spec: MachineSpec) -> LiveMachine:
        return self._machines.open(replace(spec, scope="host"))

    def remove(self, home: Path) -> None:
        self._machines.close_machine(home)
        remove_recorded_groups(home)
        self._machines.remove(home)

    def prune(self) -> int:
        """Remove layers that no machine of this store uses, and return how many."""
        return self._machines.prune_layers()

    def close(self) -> None:
        """Stop the supervisor, and with it all machines of this engine."""
        self._context.supervisor.close()

    def _create(
        self,
        spec: MachineSpec,
        home: MachineHome,
        layout: LayerLayout,
        *,
        processes: bytes,
        is_fork: bool,
    ) -> LiveMachine:
        return LiveMachine(
            self._context,
            spec,
            home,
            layout=layout,
            start_forks=self._start_forks,
            processes=processes,
            hook_kind=ON_FORK if is_fork else ON_RESTORE if processes else "",
        )

    def _start_forks(
        self, specs: Sequence[MachineSpec], layout: LayerLayout, processes: bytes = b""
    ) -> PendingMachines[LiveMachine]:
        """Start forks of a machine; each of them runs its "on-fork" hooks."""
        specs = [replace(spec, scope="host") for spec in specs]
        return self._machines.start_forks(specs, layout, processes)


def _wait_started(machines: Sequence[LiveMachine]) -> None:
    if len(machines) == 1:
        machines[0].wait_started()
        return
    with ThreadPoolExecutor(min(len(machines), os.cpu_count() or 1)) as pool:
        list(pool.map(LiveMachine.wait_started, machines))

"""The overlay engine: private machines on Linux, as root or as an ordinary user.

A machine has its own upper directory over layers that many machines share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ortet.history.records import Image
from ortet.history.tree.tree import Trees
from ortet.ids import Clock
from ortet.machines.base import Capability, Engine, Loss, MachineSpec
from ortet.machines.overlay.context import EngineContext
from ortet.machines.overlay.layers.home import LayerLayout, MachineHome
from ortet.machines.overlay.layers.store import LayerStore
from ortet.machines.overlay.machine import OverlayMachine
from ortet.machines.overlay.open_machines import OpenMachines
from ortet.machines.overlay.probe import probe_overlay
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.machines.services import service_losses
from ortet.machines.standalone.syscalls import is_privileged
from ortet.objects.base import ObjectStore


class OverlayEngine(Engine):
    """Opens overlay machines.

    `root` is the store's directory; layers are kept in its local part.
    """

    name = "overlay"

    def __init__(self, objects: ObjectStore, trees: Trees, clock: Clock, *, root: Path) -> None:
        local = root.absolute().resolve() / "local"
        bases = LayerStore(objects, trees, local / "bases")
        self._context = EngineContext(
            objects, trees, clock, layer_store=bases, rootless=not is_privileged()
        )
        self._machines = OpenMachines(
            self._context,
            local,
            self._create,
            wait_started=lambda _: None,
            service_losses=self._service_losses,
        )
        self._probed: list[Capability] | None = None

    def use_zygote(self, zygote: Zygote) -> None:
        """Start machines through the zygote of another process, which has already tested it."""
        self._context.zygote = zygote
        self._probed = [Capability("overlay", True, "lent")]

    def probe(self) -> list[Capability]:
        if self._probed is None:
            self._probed = probe_overlay(self._context.layer_store.root, self._context.zygote)
        return self._probed

    def open(self, spec: MachineSpec) -> OverlayMachine:
        return self._machines.open(spec)

    def remove(self, home: Path) -> None:
        self._machines.remove(home)

    def prune(self) -> int:
        """Remove layers that no machine of this store uses, and return how many."""
        return self._machines.prune_layers()

    def _create(
        self,
        spec: MachineSpec,
        home: MachineHome,
        layout: LayerLayout,
        *,
        processes: bytes,
        is_fork: bool,
    ) -> OverlayMachine:
        del processes, is_fork
        return OverlayMachine(self._context, spec, home, layout=layout, fork=self._fork)

    def _fork(
        self,
        specs: Sequence[MachineSpec],
        layout: LayerLayout,
        while_starting: Callable[[], None],
    ) -> list[OverlayMachine]:
        pending = self._machines.start_forks(specs, layout)
        try:
            while_starting()
        except BaseException:
            pending.cancel()
            raise
        return pending.finish()

    def _service_losses(self, image: Image) -> list[Loss]:
        return service_losses(self._context.objects, image, self.name)

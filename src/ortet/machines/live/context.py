"""What live machines stand on beside layers: the keeper, CRIU, and images that are at hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ortet._util.codec import decode
from ortet.history.records import Layer
from ortet.history.tree.tree import Trees
from ortet.ids import Clock, Oid
from ortet.machines.base import MachineSpec
from ortet.machines.live.cgroups import CgroupFactory
from ortet.machines.live.criu.binary import criu_version
from ortet.machines.live.host_compat import require_compatible_host, this_host
from ortet.machines.live.images.load import read_processes, restore_images
from ortet.machines.live.images.save import SavedImages
from ortet.machines.live.supervisor_client import SupervisorClient
from ortet.machines.overlay.context import EngineContext
from ortet.machines.overlay.home import MachineHome
from ortet.machines.overlay.layers import LayerStore
from ortet.machines.overlay.mount_plan import HostMount, HostOverlay, MountStep, live_mount_steps
from ortet.machines.overlay.system_diff import write_system_layer
from ortet.machines.overlay.upper.inotify import UpperWatch
from ortet.machines.services import RunningServices
from ortet.objects.base import ObjectStore

IMAGES_PREFIX = "images"
"""What directories with dumps in a home are called, in the beginning."""


class Dump(msgspec.Struct, frozen=True):
    """One, on disk: what a machine made from it must know, the files that go along, and what the
    store has of it, once it has."""

    images: Path
    carried: RunningServices
    covers: list[Layer]
    kept: SavedImages | None = None


class LiveEngineContext(EngineContext):
    """Shared by the live machines of one engine in one process."""

    def __init__(
        self,
        objects: ObjectStore,
        trees: Trees,
        clock: Clock,
        *,
        layer_store: LayerStore,
        criu: str,
    ) -> None:
        super().__init__(objects, trees, clock, layer_store=layer_store, rootless=False)
        self.cgroups = CgroupFactory()
        self.supervisor = SupervisorClient(criu, layer_store.area, self.cgroups)
        self.host = this_host(".".join(map(str, criu_version(criu))))
        # a watch tells one who looks at a directory, and scratch looks at the system's own
        self.temp_dirs_watch = UpperWatch()
        self.local_dumps: dict[bytes, Dump] = {}
        """Dumps that are on disk as CRIU wrote them, by the Oid of what the store has of them."""

    def load_dump(self, processes: bytes, home: MachineHome) -> Dump:
        """One at hand, else out of the store, into this home."""
        dump = self.local_dumps.get(processes)
        if dump is None or not dump.images.is_dir():
            record = read_processes(self.objects, processes)
            require_compatible_host(record, self.host)
            place = home.path / f"{IMAGES_PREFIX}-restored"
            home.remove_dir(place.name)
            kept = restore_images(self.objects, Oid(processes), place)
            dump = Dump(place, decode(RunningServices, record.jobs), record.covers, kept)
            self.local_dumps[processes] = dump
        return dump

    def _system_layers(self, layers: Sequence[Layer], fresh: Path | None) -> tuple[Path, ...]:
        """Nothing: a difference of the system is written into the upper directory itself. As a
        layer it needs an overlay below another, and what is mapped from there has a mount that is
        not the machine's: CRIU could not dump it."""
        if fresh is not None:
            for layer in layers:
                write_system_layer(self.objects, self.trees, layer, fresh)
        return ()

    def _steps(
        self, spec: MachineSpec, host: Sequence[HostMount], host_overlays: Sequence[HostOverlay]
    ) -> list[MountStep]:
        return live_mount_steps(spec, host, host_overlays, area=self.layer_store.area)

"""The overlay engine: private machines on Linux, as root or as an ordinary user.

A machine is an upper directory of its own over layers that many machines share.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec.structs import replace

from ortet._util.codec import decode
from ortet.errors import Corrupt, Invalid, Unsupported
from ortet.history.records import Image
from ortet.history.tree.tree import Trees
from ortet.ids import Clock
from ortet.machines.base import Capability, Engine, Loss, Machine, MachineSpec
from ortet.machines.dirfd import open_directory, remove_tree, translate_os_error
from ortet.machines.overlay.context import EngineContext
from ortet.machines.overlay.home import LayerLayout, MachineHome
from ortet.machines.overlay.layers import LayerStore
from ortet.machines.overlay.overlaymachine import OverlayMachine
from ortet.machines.overlay.pending_machines import PendingMachines
from ortet.machines.overlay.probe import probe_overlay
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.machines.services import service_losses
from ortet.machines.standalone.syscalls import is_privileged
from ortet.objects.base import ObjectStore


class OverlayEngine(Engine):
    """`root` is the store's directory; layers are kept in its local part."""

    name = "overlay"

    def __init__(self, objects: ObjectStore, trees: Trees, clock: Clock, *, root: Path) -> None:
        local = root.absolute().resolve() / "local"
        bases = LayerStore(objects, trees, local / "bases")
        self._context = self._make_context(objects, trees, clock, bases)
        self._homes = {local / "machines"}
        self._open: dict[Path, OverlayMachine] = {}
        self._probed: list[Capability] | None = None

    def use_zygote(self, zygote: Zygote) -> None:
        """Start machines through a helper that a process lends which has tried it."""
        self._context.zygote = zygote
        self._probed = [Capability("overlay", True, "lent")]

    def probe(self) -> list[Capability]:
        if self._probed is None:
            self._probed = probe_overlay(self._context.layer_store.root, self._context.zygote)
        return self._probed

    def open(self, spec: MachineSpec) -> OverlayMachine:
        spec = self._normal(spec)
        with ExitStack() as undo, self._context.layer_store.prevent_prune():
            home = self._lock_home(spec, undo)
            standing, processes = home.read_layout(), b""
            if standing is None:
                standing, processes, losses = self._create_layout(spec, home)
            else:
                standing, losses = self._recover_layout(spec, home, standing), []
            machine = self._start(spec, home, standing, undo, processes=processes)
            machine.finish_start(losses)
            undo.pop_all()
        self._open[spec.home] = machine
        return machine

    def fork(
        self,
        specs: Sequence[MachineSpec],
        layout: LayerLayout,
        while_starting: Callable[[], None],
        processes: bytes = b"",
    ) -> list[Machine]:
        """New machines that stand alike, all or none; called within `Bases.using`."""
        coming = self.start_forks(specs, layout, processes)
        try:
            while_starting()
        except BaseException:
            coming.cancel()
            raise
        return coming.finish()

    def start_forks(
        self, specs: Sequence[MachineSpec], layout: LayerLayout, processes: bytes = b""
    ) -> PendingMachines:
        """The same, but they are not waited for."""
        made: list[tuple[OverlayMachine, list[Loss]]] = []
        with ExitStack() as undo:
            for spec in map(self._normal, specs):
                home = self._lock_home(spec, undo)
                if home.read_layout() is not None:
                    raise Invalid("not_new", f"{spec.home} holds a machine: give a new home")
                undo.callback(self._empty, home.path)
                image = replace(layout.stack.image, system=layout.system)
                system, losses = self._context.system_for(spec, image)
                own = replace(layout, system=system)
                losses += self._write_layout(home, own)
                machine = self._start(spec, home, own, undo, processes=processes)
                made.append((machine, losses))
            last = undo.pop_all()
        homes = [spec.home for spec in specs]

        def remember(machines: Sequence[OverlayMachine]) -> None:
            self._open.update(zip(homes, machines, strict=True))

        return PendingMachines(made, last, self._wait_started, remember)

    def remove(self, home: Path) -> None:
        machine = self._open.pop(home, None)
        if machine is not None:
            machine.close()
        try:
            with open_directory(home.parent) as at:
                remove_tree(at, os.fsencode(home.name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise translate_os_error(error, f"cannot remove {home}") from error

    def prune(self) -> int:
        """Remove layers that no machine of this store rests on; returns how many went."""
        return self._context.layer_store.prune(self._layers_in_use)

    # inside

    def _make_context(
        self, objects: ObjectStore, trees: Trees, clock: Clock, layer_store: LayerStore
    ) -> EngineContext:
        return EngineContext(
            objects, trees, clock, layer_store=layer_store, rootless=not is_privileged()
        )

    def _wait_started(self, machines: Sequence[OverlayMachine]) -> None:
        """Begin what can be done for several at once, before each is waited for."""

    def _service_losses(self, image: Image) -> list[Loss]:
        """Programs that do not come back in a machine of this engine."""
        return service_losses(self._context.objects, image, self.name)

    def _machine(
        self, spec: MachineSpec, home: MachineHome, layout: LayerLayout, processes: bytes
    ) -> OverlayMachine:
        del processes
        return OverlayMachine(self._context, spec, home, layout=layout, fork=self.fork)

    def _normal(self, spec: MachineSpec) -> MachineSpec:
        if spec.scope == "host" and self._context.rootless:
            raise Unsupported(
                "scope_needs_root", "scope 'host' needs root on this host: use scope='workspace'"
            )
        self._homes.add(spec.home.parent)
        return replace(spec, path=Path(os.path.realpath(spec.path)))

    def _lock_home(self, spec: MachineSpec, undo: ExitStack) -> MachineHome:
        spec.home.mkdir(parents=True, exist_ok=True)
        home = MachineHome(self._context.objects, self._context.trees, spec.home)
        home.lock()
        undo.callback(home.close)
        return home

    def _create_layout(
        self, spec: MachineSpec, home: MachineHome
    ) -> tuple[LayerLayout, bytes, list[Loss]]:
        """The first time: find or make the layers."""
        ground = self._context
        if spec.image is None:
            raise Invalid("image_needed", "an overlay machine begins from a commit: give its image")
        image = decode(Image, ground.objects.get(spec.image))
        system, losses = ground.system_for(spec, image)
        stack, more = ground.layer_store.ensure_stack(replace(image, services=b"", processes=b""))
        standing = LayerLayout(1, stack, system)
        losses += more + self._write_layout(home, standing)
        return standing, image.processes, losses + self._service_losses(image)

    def _write_layout(self, home: MachineHome, layout: LayerLayout) -> list[Loss]:
        losses = home.make_upper(layout.upper, layout.stack, self._context.layer_store)
        home.write_layout(layout)
        return losses

    def _recover_layout(
        self, spec: MachineSpec, home: MachineHome, layout: LayerLayout
    ) -> LayerLayout:
        """Go on where it was closed, or killed."""
        bases = self._context.layer_store
        layout = home.recover_layout(layout, bases, spec.id)
        if not bases.is_complete(layout.stack):
            stack, _ = bases.ensure_stack(layout.stack.image)
            layout = replace(layout, stack=stack)
            home.write_layout(layout)
        return layout

    def _start(
        self,
        spec: MachineSpec,
        home: MachineHome,
        layout: LayerLayout,
        undo: ExitStack,
        *,
        processes: bytes = b"",
    ) -> OverlayMachine:
        machine = self._machine(spec, home, layout, processes)
        undo.callback(machine.close)
        machine.start()
        return machine

    def _empty(self, place: Path) -> None:
        with open_directory(place) as at:
            for name in os.listdir(place):
                remove_tree(at, os.fsencode(name))

    def _layers_in_use(self) -> set[str]:
        """The layers that machines rest on, open or closed."""
        names: set[str] = set()
        for home in (
            home for parent in self._homes if parent.is_dir() for home in parent.iterdir()
        ):
            with suppress(Corrupt, NotADirectoryError):
                names |= MachineHome(
                    self._context.objects, self._context.trees, home
                ).layers_in_use()
        return names

"""The machines of one engine that are open: starts, forks and removes them, all or none at a time.

The overlay engine and the engine for live machines each have one `OpenMachines`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from msgspec.structs import replace

from ortet._util.codec import decode
from ortet.errors import Corrupt, Invalid, Unsupported
from ortet.history.records import Image
from ortet.machines.base import Loss, MachineSpec
from ortet.machines.dirfd import open_directory, remove_tree, translate_os_error
from ortet.machines.overlay.context import EngineContext
from ortet.machines.overlay.layers.home import LayerLayout, MachineHome


class StartableMachine(Protocol):
    """A machine that starts in two steps, so that several can start at once."""

    def start(self) -> None: ...

    def finish_start(self, losses: Sequence[Loss] = ()) -> None: ...

    def close(self) -> None: ...


M = TypeVar("M", bound=StartableMachine)
M_co = TypeVar("M_co", bound=StartableMachine, covariant=True)


class CreateMachine(Protocol[M_co]):
    """Creates a machine that is not started. `processes` is the Oid of stored processes, or b""."""

    def __call__(
        self,
        spec: MachineSpec,
        home: MachineHome,
        layout: LayerLayout,
        *,
        processes: bytes,
        is_fork: bool,
    ) -> M_co: ...


class PendingMachines(Generic[M]):
    """Machines that start together, all or none.

    Args:
        undo: Stops the machines and removes everything that was created for them.
        wait_started: Does the slow part of the start.
        on_ready: Called when all machines are ready.
    """

    def __init__(
        self,
        started: Sequence[tuple[M, list[Loss]]],
        undo: ExitStack,
        wait_started: Callable[[Sequence[M]], None],
        on_ready: Callable[[Sequence[M]], None],
    ) -> None:
        self._started = started
        self._machines = [machine for machine, _ in started]
        self._undo = undo
        self._wait_started = wait_started
        self._on_ready = on_ready

    def wait_started(self) -> None:
        """Do the slow part of `finish`. It may run in another thread."""
        self._wait_started(self._machines)

    def finish(self) -> list[M]:
        """Wait for the machines. If one cannot start, all are stopped."""
        with self._undo:
            self.wait_started()
            for machine, losses in self._started:
                machine.finish_start(losses)
            self._undo.pop_all()
        self._on_ready(self._machines)
        return list(self._machines)

    def cancel(self) -> None:
        self._undo.close()


class OpenMachines(Generic[M]):
    """Opens and removes the machines of one engine.

    Args:
        local: The directory of the store whose `machines` holds homes.
        create: Creates a machine.
        wait_started: Waits for the slow part of the start of several machines.
        service_losses: Returns a loss for each program of an image that is not restored.
    """

    def __init__(
        self,
        context: EngineContext,
        local: Path,
        create: CreateMachine[M],
        *,
        wait_started: Callable[[Sequence[M]], None],
        service_losses: Callable[[Image], list[Loss]],
    ) -> None:
        self._context = context
        self._create = create
        self._wait_started = wait_started
        self._service_losses = service_losses
        self._homes = {local / "machines"}
        self._open: dict[Path, M] = {}

    def open(self, spec: MachineSpec) -> M:
        """Open a machine: a new one, or one that was closed or killed."""
        spec = self._normal(spec)
        with ExitStack() as undo, self._context.layer_store.prevent_prune():
            home = self._lock_home(spec, undo)
            layout, processes = home.read_layout(), b""
            if layout is None:
                layout, processes, losses = self._create_layout(spec, home)
            else:
                layout, losses = self._recover_layout(spec, home, layout), []
            machine = self._start(spec, home, layout, undo, processes=processes, is_fork=False)
            machine.finish_start(losses)
            undo.pop_all()
        self._open[spec.home] = machine
        return machine

    def start_forks(
        self, specs: Sequence[MachineSpec], layout: LayerLayout, processes: bytes = b""
    ) -> PendingMachines[M]:
        """Start new machines with this layout, and return without waiting for them.

        Call it within `LayerStore.prevent_prune`.

        Args:
            specs: One spec for each new machine.
            layout: The layout that all of them start with.
            processes: The Oid of stored processes, for engines that restore them.
        """
        forks: list[tuple[M, list[Loss]]] = []
        with ExitStack() as undo:
            for spec in map(self._normal, specs):
                home = self._lock_home(spec, undo)
                if home.read_layout() is not None:
                    raise Invalid("not_new", f"{spec.home} holds a machine: give a new home")
                undo.callback(_empty, home.path)
                image = replace(layout.stack.image, system=layout.system)
                system, losses = self._context.system_for(spec, image)
                own = replace(layout, system=system)
                losses += self._write_layout(home, own)
                machine = self._start(spec, home, own, undo, processes=processes, is_fork=True)
                forks.append((machine, losses))
            last = undo.pop_all()
        homes = [spec.home for spec in specs]

        def remember(machines: Sequence[M]) -> None:
            self._open.update(zip(homes, machines, strict=True))

        return PendingMachines(forks, last, self._wait_started, remember)

    def close_machine(self, home: Path) -> None:
        """Close the machine of this home, if it is open."""
        machine = self._open.pop(home, None)
        if machine is not None:
            machine.close()

    def remove(self, home: Path) -> None:
        """Close the machine of this home, and delete the home."""
        self.close_machine(home)
        try:
            with open_directory(home.parent) as parent_fd:
                remove_tree(parent_fd, os.fsencode(home.name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise translate_os_error(error, f"cannot remove {home}") from error

    def prune_layers(self) -> int:
        """Remove layers that no machine of this store uses, and return how many."""
        return self._context.layer_store.prune(self._layers_in_use)

    # Internals.

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
        """Find or build the layers at the first open."""
        context = self._context
        if spec.image is None:
            raise Invalid("image_needed", "an overlay machine begins from a commit: give its image")
        image = decode(Image, context.objects.get(spec.image))
        system, losses = context.system_for(spec, image)
        stack, more = context.layer_store.ensure_stack(replace(image, services=b"", processes=b""))
        layout = LayerLayout(1, stack, system)
        losses += more + self._write_layout(home, layout)
        return layout, image.processes, losses + self._service_losses(image)

    def _write_layout(self, home: MachineHome, layout: LayerLayout) -> list[Loss]:
        losses = home.make_upper(layout.upper, layout.stack, self._context.layer_store)
        home.write_layout(layout)
        return losses

    def _recover_layout(
        self, spec: MachineSpec, home: MachineHome, layout: LayerLayout
    ) -> LayerLayout:
        """Return the layout of a machine that was closed or killed."""
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
        processes: bytes,
        is_fork: bool,
    ) -> M:
        machine = self._create(spec, home, layout, processes=processes, is_fork=is_fork)
        undo.callback(machine.close)
        machine.start()
        return machine

    def _layers_in_use(self) -> set[str]:
        """Return the layers that open or closed machines use."""
        names: set[str] = set()
        for home in (
            home for parent in self._homes if parent.is_dir() for home in parent.iterdir()
        ):
            with suppress(Corrupt, NotADirectoryError):
                names |= MachineHome(
                    self._context.objects, self._context.trees, home
                ).layers_in_use()
        return names


def _empty(place: Path) -> None:
    with open_directory(place) as directory_fd:
        for name in os.listdir(place):
            remove_tree(directory_fd, os.fsencode(name))

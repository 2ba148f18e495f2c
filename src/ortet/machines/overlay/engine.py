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
from ortet.machines.base import Capability, Engine, Loss, Machine, Spec
from ortet.machines.dirfd import directory, failure, remove
from ortet.machines.overlay.context import Ground
from ortet.machines.overlay.home import Home, Standing
from ortet.machines.overlay.layers import Bases
from ortet.machines.overlay.overlaymachine import OverlayMachine
from ortet.machines.overlay.pending_machines import Coming
from ortet.machines.overlay.probe import probe_overlay
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.machines.services import left_behind
from ortet.machines.standalone.syscalls import privileged
from ortet.objects.base import Objects


class OverlayEngine(Engine):
    """`root` is the store's directory; layers are kept in its local part."""

    name = "overlay"

    def __init__(self, objects: Objects, trees: Trees, clock: Clock, *, root: Path) -> None:
        local = root.absolute().resolve() / "local"
        bases = Bases(objects, trees, local / "bases")
        self._ground = self._grounded(objects, trees, clock, bases)
        self._homes = {local / "machines"}
        self._open: dict[Path, OverlayMachine] = {}
        self._probed: list[Capability] | None = None

    def borrow(self, zygote: Zygote) -> None:
        """Start machines through a helper that a process lends which has tried it."""
        self._ground.zygote = zygote
        self._probed = [Capability("overlay", True, "lent")]

    def probe(self) -> list[Capability]:
        if self._probed is None:
            self._probed = probe_overlay(self._ground.bases.root, self._ground.zygote)
        return self._probed

    def open(self, spec: Spec) -> OverlayMachine:
        spec = self._normal(spec)
        with ExitStack() as undo, self._ground.bases.using():
            home = self._enter(spec, undo)
            standing, processes = home.read(), b""
            if standing is None:
                standing, processes, losses = self._settle_in(spec, home)
            else:
                standing, losses = self._come_back(spec, home, standing), []
            machine = self._start(spec, home, standing, undo, processes=processes)
            machine.ready(losses)
            undo.pop_all()
        self._open[spec.home] = machine
        return machine

    def fork(
        self,
        specs: Sequence[Spec],
        standing: Standing,
        meanwhile: Callable[[], None],
        processes: bytes = b"",
    ) -> list[Machine]:
        """New machines that stand alike, all or none; called within `Bases.using`."""
        coming = self.begin(specs, standing, processes)
        try:
            meanwhile()
        except BaseException:
            coming.cancel()
            raise
        return coming.finish()

    def begin(self, specs: Sequence[Spec], standing: Standing, processes: bytes = b"") -> Coming:
        """The same, but they are not waited for."""
        made: list[tuple[OverlayMachine, list[Loss]]] = []
        with ExitStack() as undo:
            for spec in map(self._normal, specs):
                home = self._enter(spec, undo)
                if home.read() is not None:
                    raise Invalid("not_new", f"{spec.home} holds a machine: give a new home")
                undo.callback(self._empty, home.place)
                image = replace(standing.stack.image, system=standing.system)
                system, losses = self._ground.system_for(spec, image)
                own = replace(standing, system=system)
                losses += self._establish(home, own)
                machine = self._start(spec, home, own, undo, processes=processes)
                made.append((machine, losses))
            last = undo.pop_all()
        homes = [spec.home for spec in specs]

        def remember(machines: Sequence[OverlayMachine]) -> None:
            self._open.update(zip(homes, machines, strict=True))

        return Coming(made, last, self._wake, remember)

    def remove(self, home: Path) -> None:
        machine = self._open.pop(home, None)
        if machine is not None:
            machine.close()
        try:
            with directory(home.parent) as at:
                remove(at, os.fsencode(home.name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise failure(error, f"cannot remove {home}") from error

    def prune(self) -> int:
        """Remove layers that no machine of this store rests on; returns how many went."""
        return self._ground.bases.prune(self._needed)

    # inside

    def _grounded(self, objects: Objects, trees: Trees, clock: Clock, bases: Bases) -> Ground:
        return Ground(objects, trees, clock, bases=bases, user=not privileged())

    def _wake(self, machines: Sequence[OverlayMachine]) -> None:
        """Begin what can be done for several at once, before each is waited for."""

    def _left_behind(self, image: Image) -> list[Loss]:
        """Programs that do not come back in a machine of this engine."""
        return left_behind(self._ground.objects, image, self.name)

    def _machine(
        self, spec: Spec, home: Home, standing: Standing, processes: bytes
    ) -> OverlayMachine:
        del processes
        return OverlayMachine(self._ground, spec, home, standing=standing, fork=self.fork)

    def _normal(self, spec: Spec) -> Spec:
        if spec.scope == "host" and self._ground.user:
            raise Unsupported(
                "scope_needs_root", "scope 'host' needs root on this host: use scope='workspace'"
            )
        self._homes.add(spec.home.parent)
        return replace(spec, path=Path(os.path.realpath(spec.path)))

    def _enter(self, spec: Spec, undo: ExitStack) -> Home:
        spec.home.mkdir(parents=True, exist_ok=True)
        home = Home(self._ground.objects, self._ground.trees, spec.home)
        home.lock()
        undo.callback(home.close)
        return home

    def _settle_in(self, spec: Spec, home: Home) -> tuple[Standing, bytes, list[Loss]]:
        """The first time: find or make the layers."""
        ground = self._ground
        if spec.image is None:
            raise Invalid("image_needed", "an overlay machine begins from a commit: give its image")
        image = decode(Image, ground.objects.get(spec.image))
        system, losses = ground.system_for(spec, image)
        stack, more = ground.bases.stack(replace(image, services=b"", processes=b""))
        standing = Standing(1, stack, system)
        losses += more + self._establish(home, standing)
        return standing, image.processes, losses + self._left_behind(image)

    def _establish(self, home: Home, standing: Standing) -> list[Loss]:
        losses = home.fresh(standing.upper, standing.stack, self._ground.bases)
        home.write(standing)
        return losses

    def _come_back(self, spec: Spec, home: Home, standing: Standing) -> Standing:
        """Go on where it was closed, or killed."""
        bases = self._ground.bases
        standing = home.recover(standing, bases, spec.id)
        if not bases.whole(standing.stack):
            stack, _ = bases.stack(standing.stack.image)
            standing = replace(standing, stack=stack)
            home.write(standing)
        return standing

    def _start(
        self,
        spec: Spec,
        home: Home,
        standing: Standing,
        undo: ExitStack,
        *,
        processes: bytes = b"",
    ) -> OverlayMachine:
        machine = self._machine(spec, home, standing, processes)
        undo.callback(machine.close)
        machine.start()
        return machine

    def _empty(self, place: Path) -> None:
        with directory(place) as at:
            for name in os.listdir(place):
                remove(at, os.fsencode(name))

    def _needed(self) -> set[str]:
        """The layers that machines rest on, open or closed."""
        names: set[str] = set()
        for home in (
            home for parent in self._homes if parent.is_dir() for home in parent.iterdir()
        ):
            with suppress(Corrupt, NotADirectoryError):
                names |= Home(self._ground.objects, self._ground.trees, home).layers()
        return names

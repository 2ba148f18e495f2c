"""What an overlay machine is made of: mounts and processes, the look at them, and its layers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from msgspec.structs import replace

from ortet._util.codec import encode
from ortet._util.failpoints import reach
from ortet.errors import Unavailable
from ortet.history.records import Image, System
from ortet.ids import Oid
from ortet.machines.base import Loss, Machine, Report, Spec
from ortet.machines.overlay.context import Ground
from ortet.machines.overlay.delta import distance
from ortet.machines.overlay.home import Home, Standing, layer_name
from ortet.machines.overlay.ignored_files import Ignored
from ortet.machines.overlay.ignoredlayers import with_ignored
from ortet.machines.overlay.image import Lens
from ortet.machines.overlay.layers import DEEPEST, Stack
from ortet.machines.overlay.mount_plan import View
from ortet.machines.overlay.restore import rethaw, tally
from ortet.machines.overlay.supervisor_client import Guard
from ortet.machines.overlay.upper.scanner import Mapped
from ortet.machines.restore.plan import make_plan
from ortet.machines.restore.restore import recover
from ortet.objects.base import Kind

_VIEW = "root"
_STAGE = "stage"
_SWITCH = 200  # differences from which on other layers are faster than writing files
_DEEPEST_EVER = 60  # for a machine whose layers hold what no image does


class Fork(Protocol):
    """Starts machines that stand so, calls back, and waits until they are ready; all or none."""

    def __call__(
        self,
        specs: Sequence[Spec],
        standing: Standing,
        meanwhile: Callable[[], None],
        processes: bytes = b"",
    ) -> list[Machine]: ...


def add_losses(forks: list[Machine], losses: Sequence[Loss]) -> list[Machine]:
    """What all of them could not be given."""
    for fork in forks:
        if isinstance(fork, Body):
            fork._losses = [*fork._losses, *losses]
    return forks


class Body(Machine):
    """From `start` to `close` a supervisor holds its mounts and processes."""

    def __init__(
        self, ground: Ground, spec: Spec, home: Home, *, standing: Standing, fork: Fork
    ) -> None:
        self._ground = ground
        self._spec = spec
        self._home = home
        self._standing = standing
        self._fork = fork
        self._losses: list[Loss] = []
        self._settled: Oid | None = None
        self._frozen: tuple[Oid, Image] | None = None
        self._unsettled = False  # the lens rests on objects that no commit holds yet
        self._epoch = self._sweeps()
        self._busy = False  # processes may be running
        self._was_busy = False  # at the last freeze
        self._closed = False
        self._lens: Lens | None = None
        self._paused: Stack | None = None  # unmounted, to go on upon these layers
        self._running: Guard | None = None

    # beginning and end

    def start(self) -> None:
        """Ask for the mounts; `ready` waits for them."""
        plan, self._covers = self._ground.plan(self._spec, self._home, self._standing)
        self._running = self._guarded(plan)

    def _guarded(self, plan: dict[str, Any]) -> Guard:
        return self._ground.zygote.start(plan)

    def ready(self, losses: Sequence[Loss] = ()) -> None:
        self._supervisor.ready()
        self._losses = list(losses)
        link, place = self._home.place / _VIEW, str(self._spec.path)
        with suppress(FileNotFoundError):
            link.unlink()
        link.symlink_to(f"/proc/{self._supervisor.pid}/root")
        self.path = View(f"/proc/{self._supervisor.pid}/root{place}")
        # the same at every open, as the journal of a thaw needs it
        self._stable = View(f"{link}{place}")
        recover(self._home.place / _STAGE)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._look_anew()
        if self._running is not None:
            self._running.close()
            with suppress(OSError):
                self._home.tidy(self._standing)
                self._home.drop_branch()
        with suppress(OSError):
            (self._home.place / _VIEW).unlink()
        self._home.close()

    # looking

    def _freeze(self) -> tuple[Oid, Image]:
        self._open_eyes()
        image = self._look()
        if self._frozen is None or self._frozen[1] != image:
            self._frozen = self._ground.objects.put(Kind.IMAGE, encode(image)), image
            self._unsettled = self._frozen[0] != self._settled
        return self._frozen

    def _open_eyes(self) -> None:
        """Have a lens for this standing, one that rests on what is in the store."""
        if self._epoch != self._sweeps():
            # a sweep may have taken what no commit held
            self._epoch = self._sweeps()
            if self._unsettled:
                self._look_anew()
        if self._lens is None:
            self._lens = Lens(
                self._ground,
                self._spec,
                self._home.upper(self._standing.upper),
                standing=self._laid_out(),
                covers=self._covers,
                view=self._stable,
            )

    def _laid_out(self) -> Standing:
        """What lies below the upper directories."""
        return self._standing

    def _look(self) -> Image:
        busy_before = self._was_busy
        mapped = self._mapped() if self._busy and self._written() else None
        self._was_busy = self._busy
        return self._seen(mapped, quiet=not (self._busy or busy_before))

    def _seen(self, mapped: Mapped | None, *, quiet: bool) -> Image:
        assert self._lens is not None
        try:
            image = self._lens.look(mapped, quiet=quiet)
        except BaseException:
            self._look_anew()  # what was learned may not be stored
            raise
        self._losses = self._lens.losses
        if self._lens.ignoring and not self._standing.ignoring:
            self._stand(replace(self._standing, ignoring=True))
        return image

    def _written(self) -> bool:
        """Has any file changed? What is mapped to be written has come to the upper directory."""
        return bool(os.listdir(self._home.upper(self._standing.upper)))

    def _mapped(self) -> Mapped:
        """Files that running processes write through memory, by directory."""
        reply, _ = self._supervisor.ask({"do": "state"})
        self._busy = reply["busy"]
        found: dict[bytes, set[str]] = {}
        for path in reply["mapped"]:
            above, _, name = path.rpartition("/")
            found.setdefault(os.fsencode(above), set()).add(name)
        return found

    def _look_anew(self) -> None:
        if self._lens is not None:
            self._lens.close()
        self._lens, self._frozen = None, None

    def _sweeps(self) -> object:
        return getattr(self._ground.objects, "epoch", None)

    @property
    def _supervisor(self) -> Guard:
        assert self._running is not None
        return self._running

    # layers

    def _ignored(self) -> Ignored | None:
        """Files of it that are no state."""
        if not self._standing.ignoring:
            return None
        self._open_eyes()
        assert self._lens is not None
        own = self._ground.bases.own(self._standing.stack)
        places = [self._home.upper(self._standing.upper), *own]
        return Ignored(self.path, places, self._lens.rules, root=not self._ground.user)

    def _share(self, image: Image) -> Stack:
        """Layers that add up to the settled image, which this machine may have left since.

        What was mounted may be gone now, until `_resume`.
        """
        stack, upper = self._standing.stack, self._home.upper(self._standing.upper)
        same = (stack.root, stack.links) == (image.root, image.links)
        if same and not (self._standing.ignoring and os.listdir(upper)):
            return stack
        if self._freeze()[0] == self._settled and self._pause(image):
            assert self._paused is not None
            return self._paused
        return self._ground.bases.stack(image, stack)[0]

    def _pause(self, image: Image) -> bool:
        """Make the upper directory, which adds up to `image`, a layer, to go on upon with another.

        False, and nothing changed, while anything has a file of the workspace open.
        """
        old, bases = self._standing, self._ground.bases
        deep = len(old.stack.layers) >= (_DEEPEST_EVER if old.ignoring else DEEPEST)
        flat = bases.stack(image, old.stack)[0] if deep else None
        if flat is not None:
            flat, _ = with_ignored(self._ground, flat, self._ignored())
        if not self._unmount():
            return False
        try:
            self._paused = flat or bases.adopt(
                self._home.upper(old.upper),
                layer_name(self._spec.id, old.upper),
                below=old.stack,
                image=image,
                shared=not old.ignoring,
            )
        except BaseException:
            self._go_back()
            raise
        reach("overlay.frozen")
        return True

    def _resume(self) -> None:
        """Go on after `_pause`, if there was one."""
        stack, self._paused = self._paused, None
        if stack is None:
            return
        new = replace(self._standing, upper=self._standing.upper + 1, stack=stack)
        try:
            self._home.fresh(new.upper, stack, self._ground.bases)
            self._mount(new)
            reach("overlay.mounted")
            self._stand(new)
        except BaseException:
            self._go_back()
            raise

    def _go_back(self) -> None:
        """To where the machine stood before `_pause`."""
        old = self._standing
        name = layer_name(self._spec.id, old.upper)
        self._ground.bases.give_back(name, self._home.upper(old.upper))
        self._mount(old)

    def _switch(
        self, current: Image, target: Image, system: System | None, *, outer: bool
    ) -> Report | None:
        """Go to the layers of another image, `outer`: with this system.

        None, and nothing changed, while files are open.
        """
        old, home, bases = self._standing, self._home, self._ground.bases
        with bases.using():
            stack, losses = bases.stack(target, old.stack)
            new = replace(old, upper=old.upper + 1, stack=stack)
            losses += home.fresh(new.upper, stack, bases)
            if outer:
                new = replace(new, system=system, outer=old.outer + 1)
                self._restart(new)
            elif not self._unmount():
                home.tidy(old)
                return None
            else:
                self._mount(new, otherwise=old)
                reach("overlay.mounted")
                self._stand(new)
                reach("overlay.switched")
        home.tidy(new)
        written, removed = tally(self._ground.trees, current.root, target.root)
        return Report(written=written, removed=removed, losses=losses)

    def _rewrite(self, current: Image, target: Image, paths: Sequence[bytes] | None) -> Report:
        """Write what differs through the merged view, where processes may be at work."""
        ground = self._ground
        self._unsettled = True
        return rethaw(
            ground.objects,
            ground.trees,
            ground.bases,
            view=self._stable,
            current=current,
            target=target,
            stage=self._home.place / _STAGE,
            paths=paths,
        )

    def _far(self, current: Image, target: Image) -> bool:
        apart = distance(self._ground.trees, current.root, target.root, most=_SWITCH)
        return apart > _SWITCH

    def _spares(self, current: Image, target: Image) -> bool:
        """Whether other ignore files come: files may stay then that the target's layers lack."""
        bases = self._ground.bases
        return make_plan(self._ground.trees, bases.side(current), bases.side(target)).new_rules

    def _restart(self, new: Standing) -> None:
        """New mounts all over: what lies below a root directory cannot be changed in place."""
        old = self._standing
        self._supervisor.close()
        try:
            self._standing = new
            self.start()
            self.ready()
        except BaseException:
            self._supervisor.close()
            self._standing = old
            self.start()
            self.ready()
            raise
        self._look_anew()
        self._stand(new)

    def _stand(self, new: Standing) -> None:
        """From here on, also after a crash, this is what the machine is made of."""
        moved = (new.upper, new.outer) != (self._standing.upper, self._standing.outer)
        self._home.write(new)
        self._standing = new
        if moved:
            self._look_anew()

    def _idle(self) -> bool:
        if self._busy:
            self._mapped()
        return not self._busy

    def _unmount(self) -> bool:
        """False while a process, of the machine or of the host, has something of it open."""
        return self._idle() and bool(self._supervisor.ask({"do": "unmount"})[0]["done"])

    def _mount(self, standing: Standing, otherwise: Standing | None = None) -> None:
        self._home.work(standing.upper)
        reply, _ = self._supervisor.ask({"do": "mount", "options": self._ground.options(standing)})
        if "error" in reply:
            if otherwise is not None:
                self._mount(otherwise)
            raise Unavailable(
                "mount_refused",
                f"the kernel refused new layers ({reply['error']}); the machine is as it was: try "
                "again",
            )

"""The base of overlay machines: mounts and processes, snapshots, and changes of layers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from msgspec.structs import replace

from ortet._util.codec import encode
from ortet._util.failpoints import failpoint
from ortet.errors import Unavailable
from ortet.history.records import Image, System
from ortet.ids import Oid
from ortet.machines.base import Loss, Machine, MachineSpec, Report
from ortet.machines.overlay.context import EngineContext
from ortet.machines.overlay.home import LayerLayout, MachineHome, layer_name
from ortet.machines.overlay.ignored_files import IgnoredFiles, add_ignored_layer
from ortet.machines.overlay.image import OverlaySnapshotter
from ortet.machines.overlay.layers import MAX_STACK_DEPTH, LayerStack, count_changes
from ortet.machines.overlay.mount_plan import MachinePath
from ortet.machines.overlay.restore import count_written_and_removed, restore_through_overlay
from ortet.machines.overlay.supervisor_client import MachineProcess
from ortet.machines.overlay.upper.scanner import MappedFiles
from ortet.machines.restore.plan import make_plan
from ortet.machines.restore.restore import recover_restore
from ortet.objects.base import Kind

_ROOT_LINK = "root"
_STAGE = "stage"
_MAX_REWRITTEN_NAMES = 200  # with more differences, other layers are faster than writing files
_MAX_PRIVATE_STACK_DEPTH = 60  # for a machine with layers that hold ignored files


class ForkCallback(Protocol):
    """Starts machines with a layout, calls back, and waits until they are ready; all or none."""

    def __call__(
        self,
        specs: Sequence[MachineSpec],
        layout: LayerLayout,
        while_starting: Callable[[], None],
        processes: bytes = b"",
    ) -> list[Machine]: ...


def add_losses(forks: list[Machine], losses: Sequence[Loss]) -> list[Machine]:
    """Append the same losses to every fork."""
    for fork in forks:
        if isinstance(fork, OverlayMachineBase):
            fork._losses = [*fork._losses, *losses]
    return forks


class OverlayMachineBase(Machine):
    """A machine whose mounts and processes a supervisor holds, from `start` to `close`."""

    def __init__(
        self,
        context: EngineContext,
        spec: MachineSpec,
        home: MachineHome,
        *,
        layout: LayerLayout,
        fork: ForkCallback,
    ) -> None:
        self._context = context
        self._spec = spec
        self._home = home
        self._layout = layout
        self._start_forks = fork
        self._losses: list[Loss] = []
        self._committed_image: Oid | None = None
        self._last_snapshot: tuple[Oid, Image] | None = None
        self._has_uncommitted = False  # the snapshotter relies on objects of no commit
        self._sweep_epoch = self._read_sweep_epoch()
        self._busy = False  # processes may be running
        self._was_busy = False  # at the last snapshot
        self._closed = False
        self._snapshotter: OverlaySnapshotter | None = None
        self._paused_stack: LayerStack | None = None  # while unmounted: the layers to mount
        self._process: MachineProcess | None = None

    # Start and close.

    def start(self) -> None:
        """Request the mounts. `finish_start` waits for them."""
        plan, self._host_overlays = self._context.plan(self._spec, self._home, self._layout)
        self._process = self._start_process(plan)

    def _start_process(self, plan: dict[str, Any]) -> MachineProcess:
        return self._context.zygote.start(plan)

    def finish_start(self, losses: Sequence[Loss] = ()) -> None:
        """Wait for the mounts, and undo an interrupted restore."""
        self._supervisor.ready()
        self._losses = list(losses)
        link, place = self._home.path / _ROOT_LINK, str(self._spec.path)
        with suppress(FileNotFoundError):
            link.unlink()
        link.symlink_to(f"/proc/{self._supervisor.pid}/root")
        self.path = MachinePath(f"/proc/{self._supervisor.pid}/root{place}")
        # The journal of a restore needs a path that is the same at every open.
        self._stable_view = MachinePath(f"{link}{place}")
        recover_restore(self._home.path / _STAGE)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._reset_snapshotter()
        if self._process is not None:
            self._process.close()
            with suppress(OSError):
                self._home.remove_unused_dirs(self._layout)
                self._home.remove_kernel_layers()
        with suppress(OSError):
            (self._home.path / _ROOT_LINK).unlink()
        self._home.close()

    # Snapshots.

    def _snapshot(self) -> tuple[Oid, Image]:
        self._ensure_snapshotter()
        image = self._scan_image()
        if self._last_snapshot is None or self._last_snapshot[1] != image:
            self._last_snapshot = self._context.objects.put(Kind.IMAGE, encode(image)), image
            self._has_uncommitted = self._last_snapshot[0] != self._committed_image
        return self._last_snapshot

    def _ensure_snapshotter(self) -> None:
        """Create a snapshotter for the present layout, unless there is a valid one.

        After a sweep, a snapshotter that relies on uncommitted objects is not valid.
        """
        if self._sweep_epoch != self._read_sweep_epoch():
            # A sweep may have deleted objects of no commit.
            self._sweep_epoch = self._read_sweep_epoch()
            if self._has_uncommitted:
                self._reset_snapshotter()
        if self._snapshotter is None:
            self._snapshotter = OverlaySnapshotter(
                self._context,
                self._spec,
                self._home.upper(self._layout.upper),
                layout=self._lower_layout(),
                host_overlays=self._host_overlays,
                view=self._stable_view,
            )

    def _lower_layout(self) -> LayerLayout:
        """Return the layout below the upper directories."""
        return self._layout

    def _scan_image(self) -> Image:
        busy_before = self._was_busy
        mapped = self._mapped() if self._busy and self._has_upper_files() else None
        self._was_busy = self._busy
        return self._scan_files(mapped, quiet=not (self._busy or busy_before))

    def _scan_files(self, mapped: MappedFiles | None, *, quiet: bool) -> Image:
        assert self._snapshotter is not None
        try:
            image = self._snapshotter.snapshot(mapped, quiet=quiet)
        except BaseException:
            self._reset_snapshotter()  # new entries may not be stored
            raise
        self._losses = self._snapshotter.losses
        if self._snapshotter.has_ignored_files and not self._layout.ignoring:
            self._set_layout(replace(self._layout, ignoring=True))
        return image

    def _has_upper_files(self) -> bool:
        """Return True if the upper directory has files.

        A file that is mapped for writing has been copied up, so without files nothing is mapped.
        """
        return bool(os.listdir(self._home.upper(self._layout.upper)))

    def _mapped(self) -> MappedFiles:
        """Return the files that processes have mapped for writing, by directory."""
        reply, _ = self._supervisor.ask({"do": "state"})
        self._busy = reply["busy"]
        found: dict[bytes, set[str]] = {}
        for path in reply["mapped"]:
            above, _, name = path.rpartition("/")
            found.setdefault(os.fsencode(above), set()).add(name)
        return found

    def _reset_snapshotter(self) -> None:
        if self._snapshotter is not None:
            self._snapshotter.close()
        self._snapshotter, self._last_snapshot = None, None

    def _read_sweep_epoch(self) -> object:
        return getattr(self._context.objects, "epoch", None)

    @property
    def _supervisor(self) -> MachineProcess:
        assert self._process is not None
        return self._process

    # Layers.

    def _ignored_files(self) -> IgnoredFiles | None:
        """Return the ignored files of the machine, or None if it has none."""
        if not self._layout.ignoring:
            return None
        self._ensure_snapshotter()
        assert self._snapshotter is not None
        own = self._context.layer_store.private_layers(self._layout.stack)
        places = [self._home.upper(self._layout.upper), *own]
        return IgnoredFiles(
            self.path, places, self._snapshotter.rules, is_root=not self._context.rootless
        )

    def _shared_stack(self, image: Image) -> LayerStack:
        """Return layers for the committed image, which this machine may have changed since.

        The workspace may be unmounted afterwards, until `_resume`.
        """
        stack, upper = self._layout.stack, self._home.upper(self._layout.upper)
        same = (stack.root, stack.links) == (image.root, image.links)
        if same and not (self._layout.ignoring and os.listdir(upper)):
            return stack
        if self._snapshot()[0] == self._committed_image and self._pause(image):
            assert self._paused_stack is not None
            return self._paused_stack
        return self._context.layer_store.ensure_stack(image, stack)[0]

    def _pause(self, image: Image) -> bool:
        """Turn the upper directory, whose merged state is `image`, into a layer.

        `_resume` continues with a new upper directory. Returns False, without any change, while a
        process has a file of the workspace open.
        """
        old, bases = self._layout, self._context.layer_store
        deep = len(old.stack.layers) >= (
            _MAX_PRIVATE_STACK_DEPTH if old.ignoring else MAX_STACK_DEPTH
        )
        flat = bases.ensure_stack(image, old.stack)[0] if deep else None
        if flat is not None:
            flat, _ = add_ignored_layer(self._context, flat, self._ignored_files())
        if not self._unmount():
            return False
        try:
            self._paused_stack = flat or bases.adopt(
                self._home.upper(old.upper),
                layer_name(self._spec.id, old.upper),
                below=old.stack,
                image=image,
                shared=not old.ignoring,
            )
        except BaseException:
            self._undo_pause()
            raise
        failpoint("overlay.frozen")
        return True

    def _resume(self) -> None:
        """Continue after `_pause`, if the machine is paused."""
        stack, self._paused_stack = self._paused_stack, None
        if stack is None:
            return
        new = replace(self._layout, upper=self._layout.upper + 1, stack=stack)
        try:
            self._home.make_upper(new.upper, stack, self._context.layer_store)
            self._mount(new)
            failpoint("overlay.mounted")
            self._set_layout(new)
        except BaseException:
            self._undo_pause()
            raise

    def _undo_pause(self) -> None:
        """Return to the layout before `_pause`."""
        old = self._layout
        name = layer_name(self._spec.id, old.upper)
        self._context.layer_store.undo_adopt(name, self._home.upper(old.upper))
        self._mount(old)

    def _switch(
        self, current: Image, target: Image, system: System | None, *, outer: bool
    ) -> Report | None:
        """Switch to the layers of another image; with `outer` also to this system difference.

        Returns None, without any change, while files are open.
        """
        old, home, bases = self._layout, self._home, self._context.layer_store
        with bases.prevent_prune():
            stack, losses = bases.ensure_stack(target, old.stack)
            new = replace(old, upper=old.upper + 1, stack=stack)
            losses += home.make_upper(new.upper, stack, bases)
            if outer:
                new = replace(new, system=system, outer=old.outer + 1)
                self._restart(new)
            elif not self._unmount():
                home.remove_unused_dirs(old)
                return None
            else:
                self._mount(new, fallback=old)
                failpoint("overlay.mounted")
                self._set_layout(new)
                failpoint("overlay.switched")
        home.remove_unused_dirs(new)
        written, removed = count_written_and_removed(self._context.trees, current.root, target.root)
        return Report(written=written, removed=removed, losses=losses)

    def _restore_files(
        self, current: Image, target: Image, paths: Sequence[bytes] | None
    ) -> Report:
        """Write the differences through the merged view, while processes may be running."""
        ground = self._context
        self._has_uncommitted = True
        return restore_through_overlay(
            ground.objects,
            ground.trees,
            ground.layer_store,
            view=self._stable_view,
            current=current,
            target=target,
            stage=self._home.path / _STAGE,
            paths=paths,
        )

    def _is_far(self, current: Image, target: Image) -> bool:
        apart = count_changes(
            self._context.trees, current.root, target.root, limit=_MAX_REWRITTEN_NAMES
        )
        return apart > _MAX_REWRITTEN_NAMES

    def _changes_ignore_rules(self, current: Image, target: Image) -> bool:
        """Return True if ignore files change.

        Then files may stay that the layers of the target do not have.
        """
        bases = self._context.layer_store
        return make_plan(
            self._context.trees, bases.image_files(current), bases.image_files(target)
        ).has_new_rules

    def _restart(self, new: LayerLayout) -> None:
        """Start again with new mounts: layers below a root directory cannot be changed in place."""
        old = self._layout
        self._supervisor.close()
        try:
            self._layout = new
            self.start()
            self.finish_start()
        except BaseException:
            self._supervisor.close()
            self._layout = old
            self.start()
            self.finish_start()
            raise
        self._reset_snapshotter()
        self._set_layout(new)

    def _set_layout(self, new: LayerLayout) -> None:
        """Store the new layout. From now on it is valid, also after a crash."""
        moved = (new.upper, new.outer) != (self._layout.upper, self._layout.outer)
        self._home.write_layout(new)
        self._layout = new
        if moved:
            self._reset_snapshotter()

    def _is_idle(self) -> bool:
        if self._busy:
            self._mapped()
        return not self._busy

    def _unmount(self) -> bool:
        """Unmount the workspace. Return False while a process of machine or host has it open."""
        return self._is_idle() and bool(self._supervisor.ask({"do": "unmount"})[0]["done"])

    def _mount(self, layout: LayerLayout, fallback: LayerLayout | None = None) -> None:
        self._home.make_work_dir(layout.upper)
        reply, _ = self._supervisor.ask(
            {"do": "mount", "options": self._context.workspace_mount_options(layout)}
        )
        if "error" in reply:
            if fallback is not None:
                self._mount(fallback)
            raise Unavailable(
                "mount_refused",
                f"the kernel refused new layers ({reply['error']}); the machine is as it was: try "
                "again",
            )

"""The files of one private machine: its layers, its mounted view, and snapshots of them.

Overlay machines and live machines each have one `OverlayFiles`. What runs in the machine is not
known here, except for the process that holds the mounts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from ortet._util.codec import encode
from ortet.errors import OrtetError
from ortet.history.records import Image
from ortet.ids import Oid
from ortet.machines.base import Loss, MachineSpec, Report
from ortet.machines.command import check_directory, relative_cwd
from ortet.machines.overlay.context import EngineContext
from ortet.machines.overlay.ignored_files import IgnoredFiles
from ortet.machines.overlay.image import OverlaySnapshotter
from ortet.machines.overlay.layers.home import LayerLayout, MachineHome
from ortet.machines.overlay.mount_plan import HostOverlay, MachinePath
from ortet.machines.overlay.restore import restore_through_overlay
from ortet.machines.overlay.supervisor_client import MachineProcess
from ortet.machines.overlay.upper.scanner import MappedFiles
from ortet.machines.restore.restore import recover_restore
from ortet.objects.base import Kind

CONTROL_LOCK_FILE = "door"  # locked while connections from outside are refused
_ROOT_LINK = "root"
_STAGE = "stage"


class OverlayFiles:
    """The layers, mounts and snapshots of one machine, from `plan` to `close`.

    Attributes:
        layout: The layers that the machine uses. `set_layout` stores a new one.
        path: The directory where the host reads the files while the machine is open.
        host_overlays: The host directories that have an overlay in this machine.
        losses: The losses of the start or of the last snapshot.
        committed_image: The last image that `mark_committed` was called with.
        last_snapshot: The last stored image and its id.
        has_uncommitted: The snapshotter relies on objects of no commit.
        busy: Processes may be running.
    """

    path: MachinePath
    _stable_view: MachinePath

    def __init__(
        self, context: EngineContext, spec: MachineSpec, home: MachineHome, layout: LayerLayout
    ) -> None:
        self.context = context
        self.spec = spec
        self.home = home
        self.layout = layout
        self.host_overlays: list[HostOverlay] = []
        self.losses: list[Loss] = []
        self.committed_image: Oid | None = None
        self.last_snapshot: tuple[Oid, Image] | None = None
        self.has_uncommitted = False
        self.busy = False
        self.was_busy = False  # at the last snapshot
        self._sweep_epoch = self._read_sweep_epoch()
        self._snapshotter: OverlaySnapshotter | None = None
        self._process: MachineProcess | None = None
        self._on_reset: Callable[[], None] = lambda: None

    # Start and close.

    def plan(self) -> dict[str, Any]:
        """Return the plan of the mounts, for the process that is about to hold them."""
        plan, self.host_overlays = self.context.plan(self.spec, self.home, self.layout)
        return plan

    def attach(self, process: MachineProcess) -> None:
        """Use the mounts that this process holds."""
        self._process = process

    @property
    def process(self) -> MachineProcess:
        assert self._process is not None
        return self._process

    def finish_start(self, losses: Sequence[Loss]) -> None:
        """Wait for the mounts, and undo an interrupted restore."""
        self.process.ready()
        self.losses = list(losses)
        self.link_root()
        recover_restore(self.home.path / _STAGE)

    def link_root(self) -> None:
        """Make the paths lead to the root directory of the present process."""
        link, place = self.home.path / _ROOT_LINK, str(self.spec.path)
        with suppress(FileNotFoundError):
            link.unlink()
        link.symlink_to(f"/proc/{self.process.pid}/root")
        self.path = MachinePath(f"/proc/{self.process.pid}/root{place}")
        # The journal of a restore needs a path that is the same at every open.
        self._stable_view = MachinePath(f"{link}{place}")

    def close(self) -> None:
        """Stop the process that holds the mounts, and release the home."""
        self.reset_snapshotter()
        if self._process is not None:
            self._process.close()
            with suppress(OSError):
                self.home.remove_unused_dirs(self.layout)
                self.home.remove_kernel_layers()
        with suppress(OSError):
            (self.home.path / _ROOT_LINK).unlink()
        self.home.close()

    @property
    def control_lock_path(self) -> str:
        """The file that is locked while connections from outside are refused."""
        return str(self.home.path / CONTROL_LOCK_FILE)

    def working_directory(self, cwd: str) -> str:
        """Return the path inside the machine of a directory below the workspace.

        Raises an error if a command cannot start there, or if the machine is gone.
        """
        below = relative_cwd(cwd)
        try:
            check_directory(self.path / below)
        except OrtetError:
            self.mapped_files()  # raises if the whole machine is gone
            raise
        return os.path.join(str(self.spec.path), below)

    # Snapshots.

    def ensure_snapshotter(self) -> None:
        """Create a snapshotter for the present layout, unless there is a valid one.

        After a sweep, a snapshotter that relies on uncommitted objects is not valid.
        """
        if self._sweep_epoch != self._read_sweep_epoch():
            # A sweep may have deleted objects of no commit.
            self._sweep_epoch = self._read_sweep_epoch()
            if self.has_uncommitted:
                self.reset_snapshotter()
        if self._snapshotter is None:
            self._snapshotter = OverlaySnapshotter(
                self.context,
                self.spec,
                self.home.upper(self.layout.upper),
                layout=self.context.layout_below_uppers(self.layout),
                host_overlays=self.host_overlays,
                view=self._stable_view,
            )

    def scan(self) -> Image:
        """Return the image of the files as they are now."""
        self.ensure_snapshotter()
        busy_before = self.was_busy
        mapped = self.mapped_files() if self.busy and self._has_upper_files() else None
        self.was_busy = self.busy
        return self.scan_mapped(mapped, quiet=not (self.busy or busy_before))

    def scan_mapped(self, mapped: MappedFiles | None, *, quiet: bool) -> Image:
        """Return the image of the files; `mapped` and `quiet` are as in `UpperScanner.scan`.

        `ensure_snapshotter` comes first.
        """
        assert self._snapshotter is not None
        try:
            image = self._snapshotter.snapshot(mapped, quiet=quiet)
        except BaseException:
            self.reset_snapshotter()  # new entries may not be stored
            raise
        self.losses = self._snapshotter.losses
        if self._snapshotter.has_ignored_files and not self.layout.ignoring:
            self.set_layout(replace(self.layout, ignoring=True))
        return image

    def store(self, image: Image) -> tuple[Oid, Image]:
        """Store an image as the last snapshot, unless it equals the one before."""
        if self.last_snapshot is None or self.last_snapshot[1] != image:
            self.last_snapshot = self.context.objects.put(Kind.IMAGE, encode(image)), image
            self.has_uncommitted = self.last_snapshot[0] != self.committed_image
        return self.last_snapshot

    def mark_committed(self, image: Oid) -> None:
        """Record that `image`, the last snapshot, is durably committed."""
        self.committed_image = image
        self.has_uncommitted = False

    @property
    def is_crowded(self) -> bool:
        """True if a new upper directory would make the next snapshot faster."""
        return self._snapshotter is not None and self._snapshotter.is_crowded

    def mapped_files(self) -> MappedFiles:
        """Return the files that processes have mapped for writing, by directory.

        It also updates `busy`.
        """
        reply, _ = self.process.ask({"do": "state"})
        self.busy = reply["busy"]
        files: dict[bytes, set[str]] = {}
        for path in reply["mapped"]:
            above, _, name = path.rpartition("/")
            files.setdefault(os.fsencode(above), set()).add(name)
        return files

    def is_idle(self) -> bool:
        """Return True if no process runs. The machine is asked only if one may run."""
        if self.busy:
            self.mapped_files()
        return not self.busy

    def reset_snapshotter(self) -> None:
        """Forget everything that earlier snapshots found."""
        if self._snapshotter is not None:
            self._snapshotter.close()
        self._snapshotter, self.last_snapshot = None, None
        self._on_reset()

    def call_on_reset(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the results of earlier snapshots become invalid."""
        self._on_reset = callback

    def ignored_files(self) -> IgnoredFiles | None:
        """Return the ignored files of the machine, or None if it has none."""
        if not self.layout.ignoring:
            return None
        self.ensure_snapshotter()
        assert self._snapshotter is not None
        own = self.context.layer_store.private_layers(self.layout.stack)
        places = [self.home.upper(self.layout.upper), *own]
        return IgnoredFiles(
            self.path, places, self._snapshotter.rules, is_root=not self.context.rootless
        )

    # Changes.

    def set_layout(self, new: LayerLayout) -> None:
        """Store the new layout. From now on it is valid, also after a crash."""
        moved = (new.upper, new.outer) != (self.layout.upper, self.layout.outer)
        self.home.write_layout(new)
        self.layout = new
        if moved:
            self.reset_snapshotter()

    def restore(self, current: Image, target: Image, paths: Sequence[bytes] | None) -> Report:
        """Write the differences through the merged view, while processes may be running."""
        context = self.context
        self.has_uncommitted = True
        return restore_through_overlay(
            context.objects,
            context.trees,
            context.layer_store,
            view=self._stable_view,
            current=current,
            target=target,
            stage=self.home.path / _STAGE,
            paths=paths,
        )

    # Internals.

    def _has_upper_files(self) -> bool:
        """Return True if the upper directory has files.

        A file that is mapped for writing has been copied up, so without files nothing is mapped.
        """
        return bool(os.listdir(self.home.upper(self.layout.upper)))

    def _read_sweep_epoch(self) -> object:
        return getattr(self.context.objects, "epoch", None)

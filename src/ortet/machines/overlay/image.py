"""Takes snapshots of an overlay machine: by its upper directories, or by all of its files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ortet._util.codec import encode
from ortet.errors import NotFound, Unavailable
from ortet.history.records import Image, System, TreeEntry
from ortet.machines.base import Loss, MachineSpec
from ortet.machines.capture.ignore_rules import IgnoreRules
from ortet.machines.capture.scanner import scan
from ortet.machines.capture.stat_index import StatIndex
from ortet.machines.overlay.context import EngineContext
from ortet.machines.overlay.layers.home import LayerLayout
from ortet.machines.overlay.layers.system_diff import SystemDiffScanner, is_no_system_state
from ortet.machines.overlay.mount_plan import HostOverlay
from ortet.machines.overlay.upper.scanner import MappedFiles, UpperScanner
from ortet.machines.restore.checkout import hardlink_groups
from ortet.objects.base import Kind

CROWDED_NAMES = 1000
"""Above this many names an upper directory should become a layer: a scan compares each name."""


class OverlaySnapshotter:
    """Takes snapshots of one layout of a machine. Another layout needs another snapshotter.

    `upper` is the workspace's upper directory, `view` the path of the merged files.
    """

    def __init__(
        self,
        context: EngineContext,
        spec: MachineSpec,
        upper: Path,
        *,
        layout: LayerLayout,
        host_overlays: Sequence[HostOverlay],
        view: Path,
    ) -> None:
        self.losses: list[Loss] = []
        self._context = context
        self._view = view
        self._groups = hardlink_groups(context.objects, layout.stack.image)
        self._index = StatIndex(context.trees)
        self._rules = IgnoreRules()
        self._needs_full_scan = False  # the upper directory is not sufficient
        self._upper = UpperScanner(
            context.objects,
            context.trees,
            upper,
            below=layout.stack.root,
            is_root=not context.rootless,
            fd_budget=context.fd_budget,
            watch=context.watch,
            view=os.fsencode(view),
        )
        self._systems = [
            self._make_system_scanner(cover, spec, layout.system)
            for cover in host_overlays
            if cover.state
        ]

    def close(self) -> None:
        self._upper.close()
        for system in self._systems:
            system.close()

    @property
    def is_crowded(self) -> bool:
        """True if a new upper directory would make the next snapshot faster."""
        return self._upper.name_count > CROWDED_NAMES or self._needs_full_scan

    @property
    def rules(self) -> IgnoreRules:
        """The ignore rules as of the last snapshot."""
        return self._rules if self._needs_full_scan else self._upper.rules

    @property
    def has_ignored_files(self) -> bool:
        """True if a snapshot has found ignored files."""
        return self._upper.has_ignored_files or self._needs_full_scan

    def snapshot(self, mapped: MappedFiles | None, *, quiet: bool) -> Image:
        """Scan the machine and return its image.

        `mapped` and `quiet` are as in `UpperScanner.scan`.
        """
        root, links = self._scan_workspace(mapped, quiet)
        return Image(root=root, links=links, system=self._scan_system())

    def _scan_workspace(self, mapped: MappedFiles | None, quiet: bool) -> tuple[TreeEntry, bytes]:
        upper = self._upper
        upper.horizon = self._context.horizon()
        try:
            root = upper.scan(mapped, quiet=quiet)
            self._needs_full_scan = upper.has_changed_rules
        except (NotFound, Unavailable) as error:
            if error.kind not in ("no_object", "not_uploaded_yet"):
                raise
            self._needs_full_scan = True  # the trees of the layers are not in the store
        if self._needs_full_scan:
            return self._scan_merged()
        self.losses = upper.losses
        if not upper.linked_inodes and not self._groups:
            return root, b""
        groups = upper.hardlink_groups(self._groups)
        return root, self._context.objects.put(Kind.META, encode(groups)) if groups else b""

    def _scan_merged(self) -> tuple[TreeEntry, bytes]:
        self.losses = []
        self._index.horizon = self._context.horizon()
        result = scan(
            self._context.objects,
            self._context.trees,
            root=self._view,
            index=self._index,
            rules=self._rules,
            losses=self.losses,
        )
        return result.root, result.links

    def _scan_system(self) -> System | None:
        """Return the differences from the host, or None."""
        layers = []
        for upper in self._systems:
            upper.horizon = self._context.horizon()
            layer = upper.difference()
            if layer is not None:
                layers.append(layer)
        return System(self._context.fingerprint, layers) if layers else None

    def _make_system_scanner(
        self, overlay: HostOverlay, spec: MachineSpec, system: System | None
    ) -> SystemDiffScanner:
        own = [os.path.realpath(path) for path in (spec.path, *spec.hide)]
        layers = [] if system is None else system.layers
        below = [layer for layer in layers if layer.mount == os.fsencode(overlay.at)]
        return SystemDiffScanner(
            self._context.objects,
            self._context.trees,
            overlay,
            below=below[0] if below else None,
            machine_dirs=own,
            is_skipped=is_no_system_state(own),
            watch=self._context.watch,
        )

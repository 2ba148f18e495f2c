"""Captures the files that a live machine wrote to /tmp, /run and similar directories.

They are not part of the image, but restored processes depend on them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ortet.history.records import Image, Layer
from ortet.history.tree.tree import Trees
from ortet.machines.base import Loss
from ortet.machines.live.open_files import OpenFilesCapture, restore_open_files
from ortet.machines.overlay.files import OverlayFiles
from ortet.machines.overlay.layers.system_diff import (
    PathFilter,
    SystemDiffScanner,
    write_system_layer,
)
from ortet.machines.overlay.mount_plan import HostOverlay, is_within
from ortet.machines.overlay.upper.inotify import UpperWatch
from ortet.objects.base import ObjectStore

_TEMP_DIRECTORIES = ("/dev/shm", "/run", "/tmp", "/var/tmp", "/var/cache")
"""Captured directories.

Nothing else below /dev, /proc and /sys is kept; devices are created again.
"""


def _is_no_temp_file(machine_dirs: Sequence[str]) -> PathFilter:
    """Return the filter that leaves only the directories that the system difference leaves out."""
    own = tuple(machine_dirs)

    def is_skipped(path: str, is_dir: bool) -> bool:
        if is_within(path, own):
            return True
        leads = is_dir and any(is_within(place, (path,)) for place in _TEMP_DIRECTORIES)
        return not (leads or is_within(path, _TEMP_DIRECTORIES))

    return is_skipped


class TempDirs:
    """The temporary directories of a machine.

    The scanners are made at the first capture, for the mounts that the machine has then. `close`
    discards them, so that the next capture begins anew.
    """

    def __init__(self, files: OverlayFiles, watch: UpperWatch) -> None:
        self._files = files
        self._watch = watch
        self._open_files: OpenFilesCapture | None = None
        self._uppers: list[SystemDiffScanner] = []

    def capture_layers(self, image: Image, *, images: Path, machine_root: Path) -> list[Layer]:
        """Capture the directories as differences against the host.

        Files that processes hold elsewhere, and that are not in `image`, are added; see
        OpenFilesCapture.
        """
        if self._open_files is None:
            self._open_files = self._make_scanners()
        horizon, layers = self._files.context.horizon(), []
        for upper in self._uppers:
            upper.horizon = horizon
            layer = upper.difference()
            if layer is not None:
                layers.append(layer)
        return self._open_files.capture_layers(
            image, layers, images=images, machine_root=machine_root
        )

    def close(self) -> None:
        for upper in self._uppers:
            upper.close()
        self._uppers, self._open_files = [], None

    def _make_scanners(self) -> OpenFilesCapture:
        context, spec, overlays = (
            self._files.context,
            self._files.spec,
            self._files.host_overlays,
        )
        objects, trees = context.objects, context.trees
        own = [os.path.realpath(path) for path in (spec.path, *spec.hide)]
        self._uppers = [
            SystemDiffScanner(
                objects,
                trees,
                cover,
                below=None,
                machine_dirs=own,
                watch=self._watch,
                is_skipped=_is_no_temp_file(own),
            )
            for cover in overlays
            if any(
                is_within(place, (cover.at,)) or is_within(cover.at, (place,))
                for place in _TEMP_DIRECTORIES
            )
        ]
        return OpenFilesCapture(
            objects, trees, workspace_path=str(spec.path), host_overlays=overlays
        )


def restore_temp_dirs(
    objects: ObjectStore,
    trees: Trees,
    host_overlays: Sequence[HostOverlay],
    layers: Sequence[Layer],
    upper: Path,
) -> list[Loss]:
    """Write the captured files into the upper directories of a machine that is about to start.

    `upper` is the upper directory of the workspace.
    """
    losses = restore_open_files(objects, trees, upper, layers)
    for layer in layers:
        for cover in host_overlays:
            if os.fsencode(cover.at) == layer.mount:
                losses += write_system_layer(objects, trees, layer, cover.upper)
    return losses

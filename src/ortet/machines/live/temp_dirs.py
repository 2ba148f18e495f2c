"""Files of a live machine that are no state of their own, but that its processes count on: what
it wrote to /tmp, /run and such places."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ortet.history.records import Image, Layer
from ortet.history.tree.tree import Trees
from ortet.machines.base import Loss
from ortet.machines.live.open_files import OpenFilesCapture, restore_open_files
from ortet.machines.overlay.mount_plan import HostOverlay, is_within
from ortet.machines.overlay.system_diff import (
    SystemEntryReader,
    SystemUpperScanner,
    write_system_layer,
)
from ortet.machines.overlay.upper.inotify import UpperWatch
from ortet.objects.base import ObjectStore

_TEMP_DIRECTORIES = ("/dev/shm", "/run", "/tmp", "/var/tmp", "/var/cache")
"""Of /dev, /proc and /sys there is nothing else to keep: devices are made anew."""


class TempDirsEntryReader(SystemEntryReader):
    """Takes what SystemTaker leaves out."""

    def is_skipped(self, path: bytes, is_dir: bool) -> bool:
        where = os.fsdecode(self.host_path(path))
        if is_within(where, self._machine_dirs):
            return True
        leads = is_dir and any(is_within(place, (where,)) for place in _TEMP_DIRECTORIES)
        return not (leads or is_within(where, _TEMP_DIRECTORIES))


class TempDirs:
    """Looks at such places of one standing of a machine; `own` are its other places."""

    def __init__(
        self,
        objects: ObjectStore,
        trees: Trees,
        host_overlays: Sequence[HostOverlay],
        *,
        machine_dirs: Sequence[str],
        watch: UpperWatch,
        open_files: OpenFilesCapture,
    ) -> None:
        self._open_files = open_files
        self._uppers = [
            SystemUpperScanner(
                objects,
                trees,
                cover,
                below=None,
                machine_dirs=machine_dirs,
                watch=watch,
                reader_class=TempDirsEntryReader,
            )
            for cover in host_overlays
            if any(
                is_within(place, (cover.at,)) or is_within(cover.at, (place,))
                for place in _TEMP_DIRECTORIES
            )
        ]

    def capture_layers(
        self, horizon: int, image: Image, *, images: Path, machine_root: Path
    ) -> list[Layer]:
        """What is there now, as differences against the host; with what processes hold elsewhere
        that is not in `image` (see heldfiles)."""
        found = []
        for upper in self._uppers:
            upper.horizon = horizon
            layer = upper.difference()
            if layer is not None:
                found.append(layer)
        return self._open_files.capture_layers(
            image, found, images=images, machine_root=machine_root
        )

    def close(self) -> None:
        for upper in self._uppers:
            upper.close()


def restore_temp_dirs(
    objects: ObjectStore,
    trees: Trees,
    host_overlays: Sequence[HostOverlay],
    layers: Sequence[Layer],
    upper: Path,
) -> list[Loss]:
    """Put it into the upper directories of a machine that is about to start; `upper` is that of its
    workspace."""
    losses = restore_open_files(objects, trees, upper, layers)
    for layer in layers:
        for cover in host_overlays:
            if os.fsencode(cover.at) == layer.mount:
                losses += write_system_layer(objects, trees, layer, cover.upper)
    return losses

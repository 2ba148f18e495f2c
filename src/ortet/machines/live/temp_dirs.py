"""Files of a live machine that are no state of their own, but that its processes count on: what
it wrote to /tmp, /run and such places."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ortet.history.records import Image, Layer
from ortet.history.tree.tree import Trees
from ortet.machines.base import Loss
from ortet.machines.live.open_files import Held, give_held
from ortet.machines.overlay.mount_plan import Cover, within
from ortet.machines.overlay.system_diff import SystemTaker, SystemUpper, lay
from ortet.machines.overlay.upper.inotify import UpperWatch
from ortet.objects.base import Objects

_KEPT = ("/dev/shm", "/run", "/tmp", "/var/tmp", "/var/cache")
"""Of /dev, /proc and /sys there is nothing else to keep: devices are made anew."""


class ScratchTaker(SystemTaker):
    """Takes what SystemTaker leaves out."""

    def skip(self, path: bytes, is_dir: bool) -> bool:
        where = os.fsdecode(self.host(path))
        if within(where, self._own):
            return True
        leads = is_dir and any(within(place, (where,)) for place in _KEPT)
        return not (leads or within(where, _KEPT))


class Scratch:
    """Looks at such places of one standing of a machine; `own` are its other places."""

    def __init__(
        self,
        objects: Objects,
        trees: Trees,
        covers: Sequence[Cover],
        *,
        own: Sequence[str],
        watch: UpperWatch,
        held: Held,
    ) -> None:
        self._held = held
        self._uppers = [
            SystemUpper(objects, trees, cover, below=None, own=own, watch=watch, takes=ScratchTaker)
            for cover in covers
            if any(within(place, (cover.at,)) or within(cover.at, (place,)) for place in _KEPT)
        ]

    def look(self, horizon: int, image: Image, *, images: Path, inside: Path) -> list[Layer]:
        """What is there now, as differences against the host; with what processes hold elsewhere
        that is not in `image` (see heldfiles)."""
        found = []
        for upper in self._uppers:
            upper.horizon = horizon
            layer = upper.difference()
            if layer is not None:
                found.append(layer)
        return self._held.look(image, found, images=images, inside=inside)

    def close(self) -> None:
        for upper in self._uppers:
            upper.close()


def give_back(
    objects: Objects, trees: Trees, covers: Sequence[Cover], layers: Sequence[Layer], upper: Path
) -> list[Loss]:
    """Put it into the upper directories of a machine that is about to start; `upper` is that of its
    workspace."""
    losses = give_held(objects, trees, upper, layers)
    for layer in layers:
        for cover in covers:
            if os.fsencode(cover.at) == layer.mount:
                losses += lay(objects, trees, layer, cover.upper)
    return losses

"""What an overlay machine is now, as an Image: by its upper directories, or by all its files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ortet._util.codec import encode
from ortet.errors import NotFound, Unavailable
from ortet.history.records import Entry, Image, System
from ortet.machines.base import Loss, Spec
from ortet.machines.capture.ignore_rules import Rules
from ortet.machines.capture.scanner import scan
from ortet.machines.capture.stat_index import StatIndex
from ortet.machines.overlay.context import Ground
from ortet.machines.overlay.home import Standing
from ortet.machines.overlay.mount_plan import Cover
from ortet.machines.overlay.system_diff import SystemUpper
from ortet.machines.overlay.upper.scanner import Mapped, Upper
from ortet.machines.restore.materialise import links_of
from ortet.objects.base import Kind

CROWDED = 1000
"""Names in an upper directory from which on it should become a layer: a scan looks at each."""


class Lens:
    """Looks at one standing of a machine; another standing needs another lens.

    `upper` is the workspace's upper directory, `view` where the merged files are.
    """

    def __init__(
        self,
        ground: Ground,
        spec: Spec,
        upper: Path,
        *,
        standing: Standing,
        covers: Sequence[Cover],
        view: Path,
    ) -> None:
        self.losses: list[Loss] = []
        self._ground = ground
        self._view = view
        self._groups = links_of(ground.objects, standing.stack.image)
        self._index = StatIndex(ground.trees)
        self._rules = Rules()
        self._blind = False  # the upper directory cannot tell
        self._upper = Upper(
            ground.objects,
            ground.trees,
            upper,
            below=standing.stack.root,
            root=not ground.user,
            spare=ground.spare,
            watch=ground.watch,
            view=os.fsencode(view),
        )
        self._systems = [
            self._outer(cover, spec, standing.system) for cover in covers if cover.state
        ]

    def close(self) -> None:
        for upper in (self._upper, *self._systems):
            upper.close()

    @property
    def crowded(self) -> bool:
        """Would a fresh upper directory make the next look faster?"""
        return self._upper.count > CROWDED or self._blind

    @property
    def rules(self) -> Rules:
        """What is no state, as the last look found them."""
        return self._rules if self._blind else self._upper.rules

    @property
    def ignoring(self) -> bool:
        """Has it seen files that are no state?"""
        return self._upper.ignoring or self._blind

    def look(self, mapped: Mapped | None, *, quiet: bool) -> Image:
        """See Upper.scan."""
        root, links = self._workspace(mapped, quiet)
        return Image(root=root, links=links, system=self._outside())

    def _workspace(self, mapped: Mapped | None, quiet: bool) -> tuple[Entry, bytes]:
        upper = self._upper
        upper.horizon = self._ground.horizon()
        try:
            root = upper.scan(mapped, quiet=quiet)
            self._blind = upper.restated
        except (NotFound, Unavailable) as error:
            if error.kind not in ("no_object", "not_uploaded_yet"):
                raise
            self._blind = True  # the layers' own trees are gone from the store
        if self._blind:
            return self._all()
        self.losses = upper.losses
        if not upper.linked and not self._groups:
            return root, b""
        groups = upper.groups(self._groups)
        return root, self._ground.objects.put(Kind.META, encode(groups)) if groups else b""

    def _all(self) -> tuple[Entry, bytes]:
        self.losses = []
        self._index.horizon = self._ground.horizon()
        found = scan(
            self._ground.objects,
            self._ground.trees,
            root=self._view,
            index=self._index,
            rules=self._rules,
            losses=self.losses,
        )
        return found.root, found.links

    def _outside(self) -> System | None:
        """What differs from the host; None when nothing does."""
        layers = []
        for upper in self._systems:
            upper.horizon = self._ground.horizon()
            layer = upper.difference()
            if layer is not None:
                layers.append(layer)
        return System(self._ground.fingerprint, layers) if layers else None

    def _outer(self, cover: Cover, spec: Spec, system: System | None) -> SystemUpper:
        own = [os.path.realpath(path) for path in (spec.path, *spec.hide)]
        layers = [] if system is None else system.layers
        below = [layer for layer in layers if layer.mount == os.fsencode(cover.at)]
        return SystemUpper(
            self._ground.objects,
            self._ground.trees,
            cover,
            below=below[0] if below else None,
            own=own,
            watch=self._ground.watch,
        )

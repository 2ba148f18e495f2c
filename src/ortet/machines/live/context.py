"""What live machines stand on beside layers: the keeper, CRIU, and images that are at hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ortet._util.codec import decode
from ortet.history.records import Layer
from ortet.history.tree.tree import Trees
from ortet.ids import Clock, Oid
from ortet.machines.base import Spec
from ortet.machines.live.cgroups import Groups
from ortet.machines.live.criu.binary import version
from ortet.machines.live.host_compat import refuse_elsewhere, this_host
from ortet.machines.live.images.load import read_processes, restore_to
from ortet.machines.live.images.save import Kept
from ortet.machines.live.supervisor_client import Keeper
from ortet.machines.overlay.context import Ground
from ortet.machines.overlay.home import Home
from ortet.machines.overlay.layers import Bases
from ortet.machines.overlay.mount_plan import Cover, Mounted, Step, live_steps
from ortet.machines.overlay.system_diff import lay
from ortet.machines.overlay.upper.inotify import UpperWatch
from ortet.machines.services import Carried
from ortet.objects.base import Objects

IMAGES = "images"
"""What directories with dumps in a home are called, in the beginning."""


class Dump(msgspec.Struct, frozen=True):
    """One, on disk: what a machine made from it must know, the files that go along, and what the
    store has of it, once it has."""

    images: Path
    carried: Carried
    covers: list[Layer]
    kept: Kept | None = None


class LiveGround(Ground):
    """Shared by the live machines of one engine in one process."""

    def __init__(
        self, objects: Objects, trees: Trees, clock: Clock, *, bases: Bases, criu: str
    ) -> None:
        super().__init__(objects, trees, clock, bases=bases, user=False)
        self.groups = Groups()
        self.keeper = Keeper(criu, bases.area, self.groups)
        self.host = this_host(".".join(map(str, version(criu))))
        # a watch tells one who looks at a directory, and scratch looks at the system's own
        self.aside = UpperWatch()
        self.at_hand: dict[bytes, Dump] = {}
        """Dumps that are on disk as CRIU wrote them, by the Oid of what the store has of them."""

    def dump_of(self, processes: bytes, home: Home) -> Dump:
        """One at hand, else out of the store, into this home."""
        dump = self.at_hand.get(processes)
        if dump is None or not dump.images.is_dir():
            record = read_processes(self.objects, processes)
            refuse_elsewhere(record, self.host)
            place = home.place / f"{IMAGES}-restored"
            home.drop(place.name)
            kept = restore_to(self.objects, Oid(processes), place)
            dump = Dump(place, decode(Carried, record.jobs), record.covers, kept)
            self.at_hand[processes] = dump
        return dump

    def _between(self, layers: Sequence[Layer], fresh: Path | None) -> tuple[Path, ...]:
        """Nothing: a difference of the system is written into the upper directory itself. As a
        layer it needs an overlay below another, and what is mapped from there has a mount that is
        not the machine's: CRIU could not dump it."""
        if fresh is not None:
            for layer in layers:
                lay(self.objects, self.trees, layer, fresh)
        return ()

    def _steps(self, spec: Spec, host: Sequence[Mounted], covers: Sequence[Cover]) -> list[Step]:
        return live_steps(spec, host, covers, area=self.bases.area)

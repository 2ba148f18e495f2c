"""Services shared by the live machines of one engine: supervisor, CRIU, cgroups, local dumps."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ortet._util.codec import decode
from ortet.history.records import Layer
from ortet.ids import Oid
from ortet.machines.host_compat import require_compatible_host, this_host
from ortet.machines.live.cgroups import CgroupFactory
from ortet.machines.live.criu.binary import criu_version
from ortet.machines.live.images.load import read_processes, restore_images
from ortet.machines.live.images.save import SavedImages
from ortet.machines.live.supervisor_client import SupervisorClient
from ortet.machines.overlay.context import EngineContext
from ortet.machines.overlay.layers.home import MachineHome
from ortet.machines.overlay.upper.inotify import UpperWatch
from ortet.machines.services import RunningServices

IMAGES_PREFIX = "images"
"""Prefix of the directories in a machine home that hold dumps."""


class Dump(msgspec.Struct, frozen=True):
    """A CRIU dump on disk.

    `carried` is what a machine restored from the dump must know. `covers` are the captured layers
    of host directories. `kept` is the stored form, or None until the dump is stored.
    """

    images: Path
    carried: RunningServices
    covers: list[Layer]
    kept: SavedImages | None = None


class LiveEngineContext:
    """Services that the live machines of one engine share within one process.

    `overlay` is the context of their files.
    """

    def __init__(self, overlay: EngineContext, *, criu: str) -> None:
        self.overlay = overlay
        self.objects = overlay.objects
        self.trees = overlay.trees
        self.layer_store = overlay.layer_store
        self.cgroups = CgroupFactory()
        self.supervisor = SupervisorClient(criu, overlay.layer_store.area, self.cgroups)
        self.host = this_host(".".join(map(str, criu_version(criu))))
        # A watch has one reader for each directory, and TempDirs watches the host's own
        # directories.
        self.temp_dirs_watch = UpperWatch()
        self.local_dumps: dict[bytes, Dump] = {}
        """Dumps on disk, as CRIU wrote them, by the object id of their stored form."""

    def load_dump(self, processes: bytes, home: MachineHome) -> Dump:
        """Return a dump on disk: a local one, or one read from the store into `home`.

        Raises Conflict("other_host") if the dump cannot be restored on this host.
        """
        dump = self.local_dumps.get(processes)
        if dump is None or not dump.images.is_dir():
            record = read_processes(self.objects, processes)
            require_compatible_host(record, self.host)
            place = home.path / f"{IMAGES_PREFIX}-restored"
            home.remove_dir(place.name)
            images = restore_images(self.objects, Oid(processes), place)
            dump = Dump(place, decode(RunningServices, record.jobs), record.covers, images)
            self.local_dumps[processes] = dump
        return dump

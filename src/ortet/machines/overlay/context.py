"""The context that all overlay machines of an engine share: layers, zygote, mount options."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortet.history.records import Image, Layer, System
from ortet.history.tree.tree import Trees
from ortet.ids import Clock
from ortet.machines.base import Loss, MachineSpec
from ortet.machines.capture.stat_index import NEVER_RACY, ctime_granularity_ns
from ortet.machines.overlay.layers.home import LayerLayout, MachineHome
from ortet.machines.overlay.layers.store import LayerStack, LayerStore
from ortet.machines.overlay.layers.system_diff import (
    ensure_system_layer,
    host_fingerprint,
    write_system_layer,
)
from ortet.machines.overlay.mount_plan import (
    HostMount,
    HostOverlay,
    MountStep,
    dirs_to_overlay,
    live_mount_steps,
    mount_steps,
    parse_mounts,
)
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.machines.overlay.upper.fd_cache import FdBudget
from ortet.machines.overlay.upper.inotify import UpperWatch
from ortet.machines.standalone.syscalls import overlay_options
from ortet.objects.base import ObjectStore

_BASES = "b"  # the names under which a supervisor holds host directories
_HOME = "h"


class EngineContext:
    """Services that the machines of one engine share in one process.

    With `dumpable`, CRIU must be able to dump the machines. It cannot dump a file that is mapped
    from an overlay on top of another overlay, because that belongs to a mount outside of the
    machine. So the system difference is written into the upper directories instead of being a layer
    of its own.
    """

    def __init__(
        self,
        objects: ObjectStore,
        trees: Trees,
        clock: Clock,
        *,
        layer_store: LayerStore,
        rootless: bool,
        dumpable: bool = False,
    ) -> None:
        self.objects = objects
        self.trees = trees
        self.layer_store = layer_store
        self.rootless = rootless
        self._dumpable = dumpable
        self.zygote = Zygote(rootless=rootless)
        self.watch = UpperWatch()
        self.fd_budget = FdBudget(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._clock = clock

    @cached_property
    def fingerprint(self) -> str:
        return host_fingerprint()

    @cached_property
    def _ctime_margin_ns(self) -> int:
        return ctime_granularity_ns(self.layer_store.root)

    def horizon(self) -> int:
        """Return the time from which on a ctime is racy."""
        return self._clock.now_ns() - self._ctime_margin_ns if self._ctime_margin_ns else NEVER_RACY

    def workspace_mount_options(self, layout: LayerLayout) -> str:
        """Return the mount options of the workspace's overlay."""
        number = layout.upper
        return self.mount_options(layout.stack, f"upper-{number}", f"work-{number}")

    def mount_options(self, stack: LayerStack, upper: str, work: str) -> str:
        """Return the mount options of an overlay of these layers and directories of a home."""
        extra = ["xino=off", "volatile"]
        extra += ["userxattr"] if self.rootless else ["redirect_dir=on", "metacopy=on", "index=off"]
        return overlay_options(
            [f"{_BASES}/{name}" for name in stack.layers],
            f"{_HOME}/{upper}",
            f"{_HOME}/{work}",
            extra=extra,
        )

    def mount_sources(self, home: MachineHome) -> dict[str, str]:
        """Return the host directories behind the names in `mount_options`."""
        return {_BASES: str(self.layer_store.root), _HOME: str(home.path)}

    def plan(
        self, spec: MachineSpec, home: MachineHome, layout: LayerLayout
    ) -> tuple[dict[str, Any], list[HostOverlay]]:
        """Return the plan for a supervisor, and the host directories that get an overlay."""
        host = parse_mounts(Path("/proc/self/mountinfo").read_bytes())
        covers = []
        for directory, state in dirs_to_overlay(spec, host):
            with suppress(FileNotFoundError):  # the host has just unmounted it
                covers.append(self._make_host_overlay(home, layout, directory, state=state))
        area = self.layer_store.area
        (area / "root").mkdir(parents=True, exist_ok=True)
        for number, cover in enumerate(covers):
            if cover.layers:
                (area / f"under{number}").mkdir(exist_ok=True)
        home.make_work_dir(layout.upper)
        plan = {
            "root": str(area / "root"),
            "held": self.mount_sources(home),
            "steps": self._steps(spec, host, covers),
            "place": str(spec.path),
            "workspace": self.workspace_mount_options(layout),
        }
        return plan, covers

    def _steps(
        self, spec: MachineSpec, host: Sequence[HostMount], covers: Sequence[HostOverlay]
    ) -> list[MountStep]:
        area = self.layer_store.area
        if self._dumpable:
            return live_mount_steps(spec, host, covers, area=area)
        return mount_steps(spec, host, covers, area=area, rootless=self.rootless)

    def layout_below_uppers(self, layout: LayerLayout) -> LayerLayout:
        """Return the part of a layout that is in no upper directory."""
        return replace(layout, system=None) if self._dumpable else layout

    def system_for(self, spec: MachineSpec, image: Image) -> tuple[System | None, list[Loss]]:
        """Return the image's system difference if it fits this host, otherwise a Loss."""
        system = image.system
        if system is None:
            return None, []
        if spec.scope != "host":
            why = "changes outside of the workspace come back in a machine of scope 'host' only"
        elif system.base != self.fingerprint:
            why = "changes outside of the workspace were made on a host with other packages"
        else:
            return system, []
        return None, [Loss("", "system", why)]

    def _make_host_overlay(
        self, home: MachineHome, layout: LayerLayout, directory: str, *, state: bool
    ) -> HostOverlay:
        name = home.host_upper_name(layout, directory)
        upper = home.path / name
        fresh = not upper.is_dir()
        if fresh:
            upper.mkdir()
            _copy_metadata(upper, directory)
        work = home.make_empty_dir(name.replace("host", "hostwork", 1))
        known = () if layout.system is None else layout.system.layers
        layers = [layer for layer in known if layer.mount == os.fsencode(directory)]
        return HostOverlay(
            directory, state, upper, work, self._system_layers(layers, upper if fresh else None)
        )

    def _system_layers(self, layers: Sequence[Layer], fresh: Path | None) -> tuple[Path, ...]:
        """Return the layers between a directory of the host and an upper directory.

        `fresh` is the upper directory if it is new.
        """
        if self._dumpable:
            if fresh is not None:
                for layer in layers:
                    write_system_layer(self.objects, self.trees, layer, fresh)
            return ()
        return tuple(
            ensure_system_layer(self.objects, self.trees, self.layer_store, layer)
            for layer in layers
        )


def _copy_metadata(upper: Path, directory: str) -> None:
    """Copy the metadata of `directory` to `upper`.

    The root of an overlay shows the metadata of its upper directory.
    """
    shutil.copystat(directory, upper)
    st = os.stat(directory)
    try:
        os.chown(upper, st.st_uid, st.st_gid)
        os.chmod(upper, st.st_mode & 0o7777)
    except PermissionError:  # in a machine of an ordinary user, that user owns it
        os.chmod(upper, st.st_mode & 0o1777)
    os.utime(upper, ns=(st.st_mtime_ns, st.st_mtime_ns))

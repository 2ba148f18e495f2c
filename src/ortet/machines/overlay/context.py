"""What all overlay machines of an engine stand on: layers, the zygote, the plan of a start."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from ortet.history.records import Image, Layer, System
from ortet.history.tree.tree import Trees
from ortet.ids import Clock
from ortet.machines.base import Loss, Spec
from ortet.machines.capture.ctimes import granularity
from ortet.machines.capture.stat_index import CALM
from ortet.machines.overlay.home import Home, Standing
from ortet.machines.overlay.layers import Bases, Stack
from ortet.machines.overlay.mount_plan import (
    Cover,
    Mounted,
    Step,
    parse_mounts,
    places_to_cover,
    steps,
)
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.machines.overlay.system_diff import fingerprint, stack_system
from ortet.machines.overlay.upper.fd_cache import Spare
from ortet.machines.overlay.upper.inotify import UpperWatch
from ortet.machines.standalone.syscalls import overlay_options
from ortet.objects.base import Objects

_BASES = "b"  # the names under which a supervisor holds host directories
_HOME = "h"


class Ground:
    """Shared by the machines of one engine in one process."""

    def __init__(
        self, objects: Objects, trees: Trees, clock: Clock, *, bases: Bases, user: bool
    ) -> None:
        self.objects = objects
        self.trees = trees
        self.bases = bases
        self.user = user
        self.zygote = Zygote(user=user)
        self.watch = UpperWatch()
        self.spare = Spare(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._clock = clock

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint()

    @cached_property
    def _margin(self) -> int:
        return granularity(self.bases.root)

    def horizon(self) -> int:
        """ctimes from here on are racy."""
        return self._clock.now_ns() - self._margin if self._margin else CALM

    def options(self, standing: Standing) -> str:
        """The workspace's overlay."""
        number = standing.upper
        return self.options_of(standing.stack, f"upper-{number}", f"work-{number}")

    def options_of(self, stack: Stack, upper: str, work: str) -> str:
        """An overlay of these layers and directories of a home."""
        extra = ["xino=off", "volatile"]
        extra += ["userxattr"] if self.user else ["redirect_dir=on", "metacopy=on", "index=off"]
        return overlay_options(
            [f"{_BASES}/{name}" for name in stack.layers],
            f"{_HOME}/{upper}",
            f"{_HOME}/{work}",
            extra=extra,
        )

    def held(self, home: Home) -> dict[str, str]:
        """What the names in `options_of` stand for."""
        return {_BASES: str(self.bases.root), _HOME: str(home.place)}

    def plan(
        self, spec: Spec, home: Home, standing: Standing
    ) -> tuple[dict[str, Any], list[Cover]]:
        """All a supervisor needs to know, and what it will cover."""
        host = parse_mounts(Path("/proc/self/mountinfo").read_bytes())
        covers = []
        for at, state in places_to_cover(spec, host):
            with suppress(FileNotFoundError):  # the host has just unmounted it
                covers.append(self._cover(home, standing, at, state=state))
        area = self.bases.area
        (area / "root").mkdir(parents=True, exist_ok=True)
        for number, cover in enumerate(covers):
            if cover.layers:
                (area / f"under{number}").mkdir(exist_ok=True)
        home.work(standing.upper)
        plan = {
            "root": str(area / "root"),
            "held": self.held(home),
            "steps": self._steps(spec, host, covers),
            "place": str(spec.path),
            "workspace": self.options(standing),
        }
        return plan, covers

    def _steps(self, spec: Spec, host: Sequence[Mounted], covers: Sequence[Cover]) -> list[Step]:
        return steps(spec, host, covers, area=self.bases.area, user=self.user)

    def system_for(self, spec: Spec, image: Image) -> tuple[System | None, list[Loss]]:
        """The image's system difference, if it can be laid over this host; a Loss if not."""
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

    def _cover(self, home: Home, standing: Standing, at: str, *, state: bool) -> Cover:
        name = home.outer(standing, at)
        upper = home.place / name
        fresh = not upper.is_dir()
        if fresh:
            upper.mkdir()
            _dress(upper, at)
        work = home.empty(name.replace("host", "hostwork", 1))
        known = () if standing.system is None else standing.system.layers
        layers = [layer for layer in known if layer.mount == os.fsencode(at)]
        return Cover(at, state, upper, work, self._between(layers, upper if fresh else None))

    def _between(self, layers: Sequence[Layer], fresh: Path | None) -> tuple[Path, ...]:
        """What lies between a directory of the host and an upper directory; `fresh` is that one
        when it is new."""
        del fresh
        return tuple(stack_system(self.objects, self.trees, self.bases, one) for one in layers)


def _dress(upper: Path, at: str) -> None:
    """An overlay's root looks like its upper directory: make that look like what it covers."""
    shutil.copystat(at, upper)
    st = os.stat(at)
    try:
        os.chown(upper, st.st_uid, st.st_gid)
        os.chmod(upper, st.st_mode & 0o7777)
    except PermissionError:  # an ordinary user's machine: it is the user's own
        os.chmod(upper, st.st_mode & 0o1777)
    os.utime(upper, ns=(st.st_mtime_ns, st.st_mtime_ns))

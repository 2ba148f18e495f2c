"""Control groups, by which a live machine is kept within its limits, where the host lets us.

Always below the group that this process is in: what limits us limits our machines too.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from ortet.machines.base import Capability, Loss, Result
from ortet.machines.limits import PIDS, Limits
from ortet.machines.live.grouphome import CONTROLLERS, Place, find_places, put

RECORD = "groups"
"""In a machine's home: the groups it has, one a line, so that those of a dead one are found."""

PREFIX = "ortet-"
"""What the names of groups begin with that are ours to remove."""

_PERIOD = 100_000  # microseconds
_SPARE = Limits(memory=64 << 20, pids=16)  # what CRIU needs for itself while it restores
_SWAP = ("memory.swap.max", "memory.memsw.limit_in_bytes")  # not there without swap accounting
_TRIES, _PAUSE = 50, 0.01
_FIX = (
    "run ortet as root where the control groups memory, cpu and pids can be written; machines run "
    "without limits until then"
)


class Groups:
    """The places of this process, looked up at first need."""

    def __init__(self, places: Mapping[str, Place] | None = None) -> None:
        self._places = places

    @property
    def places(self) -> Mapping[str, Place]:
        if self._places is None:
            self._places = find_places(
                Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_bytes()
            )
        return self._places

    def make(
        self,
        machine: str,
        limits: Limits,
        home: Path,
        *,
        restoring: bool = False,
        reserved: str = "",
    ) -> Group:
        """A group for a machine that is about to begin; what cannot be limited here is in its
        `losses`. With `restoring` there is room for CRIU too, until `tighten`. One that was made
        before, `reserved`, is used for what it can limit."""
        remove_recorded(home)
        group = Group(limits, home)
        # never the name of one before: whoever is to remove that must not find this
        name = f"{PREFIX}{machine}-{os.urandom(4).hex()}"
        for controller in CONTROLLERS:
            if getattr(limits, controller):
                place = self.places.get(controller)
                if place is not None and reserved and Path(reserved).parent == place.path:
                    group.take(controller, Path(reserved), place.version)
                else:
                    group.add(controller, place, name)
        group.write(_with_spare(limits) if restoring else limits)
        return group


class Group:
    """What one machine is in: a directory for each controller, or one for all."""

    def __init__(self, limits: Limits, home: Path) -> None:
        self._limits = limits
        self._home = home
        self._by: dict[str, tuple[Path, int]] = {}
        self.losses: list[Loss] = []

    @property
    def paths(self) -> list[str]:
        """Directories whose `cgroup.procs` a process joins."""
        return sorted({str(path) for path, _ in self._by.values()})

    def add(self, controller: str, place: Place | None, name: str) -> None:
        if place is None:
            self._lack(controller, "this host has no such control group for us")
            return
        path = place.path / name
        try:
            if str(path) not in self.paths:
                _record(self._home, [*recorded(self._home), path])
                path.mkdir()
            self._by[controller] = path, place.version
        except OSError as error:
            self._lack(controller, str(error))

    def take(self, controller: str, path: Path, version: int) -> None:
        """One that is there."""
        if str(path) not in self.paths:
            _record(self._home, [*recorded(self._home), path])
        self._by[controller] = path, version

    def write(self, limits: Limits) -> None:
        for controller, (path, version) in list(self._by.items()):
            try:
                for name, value in _files(controller, limits, version):
                    if (path / name).exists() or name not in _SWAP:
                        put(path / name, value)
            except OSError as error:
                self._lack(controller, str(error))

    def tighten(self) -> None:
        """Nothing but the machine is in it any more."""
        self.write(self._limits)

    def kills(self) -> int:
        """How often a process was killed in it for lack of memory."""
        if "memory" not in self._by:
            return 0
        path, version = self._by["memory"]
        with suppress(OSError):
            text = (path / ("memory.events" if version == 2 else "memory.oom_control")).read_text()
            for line in text.splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0

    def explain(self, result: Result, kills: int) -> Result:
        """A result that says so when a limit was in the way; `kills` is the number of before."""
        if self.kills() > kills:
            size = self._limits.memory
            why = f"the machine reached its memory limit of {size} bytes and a process was killed"
            return replace(result, oom=True, stderr=f"{result.stderr}ortet: {why}\n")
        if result.exit_code and self._full():
            why = f"the machine has as many processes as its limit allows, {self._limits.pids}"
            return replace(result, stderr=f"{result.stderr}ortet: {why}: stop some\n")
        return result

    def close(self) -> None:
        """Remove it; what still has an ending process in it is found later by its record."""
        for _ in range(_TRIES):
            if not remove_recorded(self._home, [Path(path) for path in self.paths]):
                return
            time.sleep(_PAUSE)

    def _full(self) -> bool:
        if "pids" not in self._by:
            return False
        with suppress(OSError):
            current = int((self._by["pids"][0] / "pids.current").read_text())
            return current >= self._limits.pids
        return False

    def _lack(self, controller: str, why: str) -> None:
        self._by.pop(controller, None)
        if controller != "pids" or self._limits.pids != PIDS:  # else nobody asked for it
            self.losses.append(Loss("", "limit", f"{controller} is not limited here: {why}"))


def probe_limits(groups: Groups) -> list[Capability]:
    """Tried for real. Not one of an engine's needs: machines run without."""
    bad = []
    for name in CONTROLLERS:
        place = groups.places.get(name)
        if place is None:
            bad.append(f"there is no control group {name}")
            continue
        trial = place.path / f"{PREFIX}probe-{os.getpid()}-{name}"
        try:
            trial.mkdir()
            trial.rmdir()
        except OSError as error:
            bad.append(f"{name}: {error.strerror}")
    if bad:
        return [Capability("limits", False, "; ".join(bad), _FIX)]
    return [Capability("limits", True, "memory, cpu and pids of live machines")]


def recorded(home: Path) -> list[Path]:
    """Groups that the machine of this home made and did not remove."""
    return written(home / RECORD)


def written(record: Path) -> list[Path]:
    """The groups that a file names."""
    try:
        return [Path(line) for line in record.read_text().splitlines() if line]
    except (OSError, UnicodeDecodeError):
        return []


def remove_recorded(home: Path, those: list[Path] | None = None) -> list[Path]:
    """Remove all groups of a home, or those, that no process is in; returns those that stay."""
    known = recorded(home)
    due = known if those is None else those
    left = [path for path in known if path not in due or not remove_group(path)]
    if left != known:
        _record(home, left)
    return left if those is None else [path for path in left if path in those]


def remove_group(path: Path) -> bool:
    """Whether it is gone; one with processes in it stays."""
    if not path.name.startswith(PREFIX):
        return False
    try:
        path.rmdir()
    except OSError as error:
        return error.errno == errno.ENOENT
    return True


def _record(home: Path, groups: list[Path]) -> None:
    with suppress(FileNotFoundError):  # a home that is being removed
        (home / RECORD).write_text("".join(f"{path}\n" for path in groups))


def _files(controller: str, limits: Limits, version: int) -> list[tuple[str, str]]:
    if controller == "pids":
        return [("pids.max", str(limits.pids))]
    if controller == "memory":
        size = str(limits.memory)
        if version == 2:
            return [("memory.swap.max", "0"), ("memory.max", size)]
        return [("memory.limit_in_bytes", size), ("memory.memsw.limit_in_bytes", size)]
    quota = round(limits.cpu * _PERIOD)
    if version == 2:
        return [("cpu.max", f"{quota} {_PERIOD}")]
    return [("cpu.cfs_period_us", str(_PERIOD)), ("cpu.cfs_quota_us", str(quota))]


def _with_spare(limits: Limits) -> Limits:
    memory = limits.memory + _SPARE.memory if limits.memory else 0
    return replace(limits, memory=memory, pids=limits.pids + _SPARE.pids)

"""Control groups that limit a live machine, if the host allows them.

They are always below the group of this process, so limits of this process hold for machines too.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from ortet.machines.base import Capability, Loss, Result
from ortet.machines.limits import DEFAULT_MAX_PIDS, MachineLimits

# Finds where control groups can be created on this host, for each controller.
#
# Version 1 has one hierarchy for each controller. Version 2 has one for all, and a group with
# processes cannot delegate controllers. There the nearest ancestor that delegates them is used, as
# long as no group in between has a limit.

CONTROLLERS = ("memory", "cpu", "pids")
_SUBTREE_CONTROL = "cgroup.subtree_control"


class CgroupParent(NamedTuple):
    """A group below which groups with a controller can be created."""

    path: Path
    version: int


def find_cgroup_parents(proc_cgroup: str, mountinfo: bytes) -> dict[str, CgroupParent]:
    """Return the parent groups by controller; `proc_cgroup` is the text of /proc/self/cgroup."""
    parents: dict[str, CgroupParent] = {}
    lines = [line.split(":", 2) for line in proc_cgroup.splitlines()]
    for mount in _mounts(mountinfo):
        for number, names, group in lines:
            there = _group_path(mount, group)
            if mount.kind == "cgroup" and there is not None:
                ours = {*names.split(",")} & {*mount.options.split(",")} & {*CONTROLLERS}
                parents |= {name: CgroupParent(there, 1) for name in ours}
            elif mount.kind == "cgroup2" and number == "0" and there is not None:
                place = _find_delegating_group(there, Path(mount.mount_point))
                for name in _read_words(place / _SUBTREE_CONTROL) if place else []:
                    if place is not None and name in CONTROLLERS:
                        parents[name] = CgroupParent(place, 2)
    return {name: place for name, place in parents.items() if place.path.is_dir()}


class _CgroupMount(NamedTuple):
    mount_point: str
    root: str
    kind: str
    options: str


def _mounts(mountinfo: bytes) -> Iterator[_CgroupMount]:
    for line in os.fsdecode(mountinfo).splitlines():
        fields = line.split(" ")
        kind, _, options = fields[fields.index("-") + 1 :][:3]
        if kind in ("cgroup", "cgroup2"):
            yield _CgroupMount(fields[4], fields[3], kind, options)


def _group_path(mount: _CgroupMount, group: str) -> Path | None:
    """Return the path of a group under a mount, which may show only a part of the hierarchy."""
    root = mount.root.rstrip("/")
    if ".." in group.split("/"):  # outside of this cgroup namespace
        return None
    if group != root and not group.startswith(f"{root}/"):
        return None
    return Path(f"{mount.mount_point}/{group[len(root) :].strip('/')}")


def write_control_file(path: Path, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _find_delegating_group(own: Path, mount_point: Path) -> Path | None:
    """Return the version 2 group below which groups can be created."""
    wanted = [name for name in CONTROLLERS if name in _read_words(own / "cgroup.controllers")]
    with suppress(OSError):  # refused while the group has processes, except for the root group
        if wanted:
            write_control_file(own / _SUBTREE_CONTROL, " ".join(f"+{name}" for name in wanted))
    place = own
    while not set(CONTROLLERS) & set(_read_words(place / _SUBTREE_CONTROL)):
        if place == mount_point or any(_active_limits(place)):
            return None
        place = place.parent
    return place


def _active_limits(group: Path) -> list[str]:
    """Return the control files that limit a version 2 group."""
    files = ("memory.max", "memory.high", "pids.max", "cpu.max")
    return [name for name in files if (_read_words(group / name) or ["max"])[0] != "max"]


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


GROUPS_FILE = "groups"
"""File in a machine's home that lists its groups, one a line, to find those of a dead machine."""

GROUP_PREFIX = "ortet-"
"""Name prefix of the groups that Ortet may remove."""

_CPU_PERIOD_MICROSECONDS = 100_000
_CRIU_HEADROOM = MachineLimits(
    memory=64 << 20, pids=16
)  # resources that CRIU itself needs during a restore
_SWAP_FILES = (
    "memory.swap.max",
    "memory.memsw.limit_in_bytes",
)  # missing without swap accounting
_REMOVE_TRIES, _REMOVE_PAUSE_SECONDS = 50, 0.01
_FIX = (
    "run ortet as root where the control groups memory, cpu and pids can be written; machines run "
    "without limits until then"
)


class CgroupFactory:
    """Creates control groups below the groups of this process, which are looked up at first use."""

    def __init__(self, parents: Mapping[str, CgroupParent] | None = None) -> None:
        self._parents = parents

    @property
    def parents(self) -> Mapping[str, CgroupParent]:
        if self._parents is None:
            self._parents = find_cgroup_parents(
                Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_bytes()
            )
        return self._parents

    def create(
        self,
        machine_id: str,
        limits: MachineLimits,
        home: Path,
        *,
        restoring: bool = False,
        reserved: str = "",
    ) -> MachineCgroup:
        """Create the group of a machine that is about to start.

        Args:
            home: the groups are recorded there, so that they can be removed after a crash.
            restoring: leave room for CRIU until `drop_criu_headroom`.
            reserved: an existing group to use for the controllers that it has.

        Returns:
            The group. Limits that this host cannot enforce are in its `losses`.
        """
        remove_recorded_groups(home)
        group = MachineCgroup(limits, home)
        # A name is never reused: a cleanup of the old group must not find the new one.
        name = f"{GROUP_PREFIX}{machine_id}-{os.urandom(4).hex()}"
        for controller in CONTROLLERS:
            if getattr(limits, controller):
                place = self.parents.get(controller)
                if place is not None and reserved and Path(reserved).parent == place.path:
                    group.add_existing(controller, Path(reserved), place.version)
                else:
                    group.add(controller, place, name)
        group.write_limits(_with_criu_headroom(limits) if restoring else limits)
        return group


class MachineCgroup:
    """The control group of one machine: one directory for each controller, or one for all."""

    def __init__(self, limits: MachineLimits, home: Path) -> None:
        self._limits = limits
        self._home = home
        self._by_controller: dict[str, tuple[Path, int]] = {}
        self.losses: list[Loss] = []

    @property
    def paths(self) -> list[str]:
        """Directories whose `cgroup.procs` a process must join."""
        return sorted({str(path) for path, _ in self._by_controller.values()})

    def add(self, controller: str, parent: CgroupParent | None, name: str) -> None:
        """Create the group for a controller. If that fails, the limit becomes a loss."""
        if parent is None:
            self._drop_controller(controller, "this host has no such control group for us")
            return
        path = parent.path / name
        try:
            if str(path) not in self.paths:
                _write_record(self._home, [*recorded_groups(self._home), path])
                path.mkdir()
            self._by_controller[controller] = path, parent.version
        except OSError as error:
            self._drop_controller(controller, str(error))

    def add_existing(self, controller: str, path: Path, version: int) -> None:
        """Use an existing group for a controller."""
        if str(path) not in self.paths:
            _write_record(self._home, [*recorded_groups(self._home), path])
        self._by_controller[controller] = path, version

    def write_limits(self, limits: MachineLimits) -> None:
        """Write the limits of all controllers. A limit that cannot be written becomes a loss."""
        for controller, (path, version) in list(self._by_controller.items()):
            try:
                for name, value in _limit_files(controller, limits, version):
                    if (path / name).exists() or name not in _SWAP_FILES:
                        write_control_file(path / name, value)
            except OSError as error:
                self._drop_controller(controller, str(error))

    def drop_criu_headroom(self) -> None:
        """Set the final limits, once CRIU has left the group."""
        self.write_limits(self._limits)

    def oom_kills(self) -> int:
        """Return how often a process of the machine was killed for lack of memory."""
        if "memory" not in self._by_controller:
            return 0
        path, version = self._by_controller["memory"]
        with suppress(OSError):
            text = (path / ("memory.events" if version == 2 else "memory.oom_control")).read_text()
            for line in text.splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0

    def explain_limits(self, result: Result, kills_before: int) -> Result:
        """Return the result with a note if a limit was reached.

        `kills_before` counts earlier OOM kills.
        """
        if self.oom_kills() > kills_before:
            size = self._limits.memory
            why = f"the machine reached its memory limit of {size} bytes and a process was killed"
            return replace(result, oom=True, stderr=f"{result.stderr}ortet: {why}\n")
        if result.exit_code and self._is_at_pids_limit():
            why = f"the machine has as many processes as its limit allows, {self._limits.pids}"
            return replace(result, stderr=f"{result.stderr}ortet: {why}: stop some\n")
        return result

    def close(self) -> None:
        """Remove the group.

        If a process is still ending in it, the record serves to remove it later.
        """
        for _ in range(_REMOVE_TRIES):
            if not remove_recorded_groups(self._home, [Path(path) for path in self.paths]):
                return
            time.sleep(_REMOVE_PAUSE_SECONDS)

    def _is_at_pids_limit(self) -> bool:
        if "pids" not in self._by_controller:
            return False
        with suppress(OSError):
            current = int((self._by_controller["pids"][0] / "pids.current").read_text())
            return current >= self._limits.pids
        return False

    def _drop_controller(self, controller: str, why: str) -> None:
        self._by_controller.pop(controller, None)
        if (
            controller != "pids" or self._limits.pids != DEFAULT_MAX_PIDS
        ):  # the default limit was not requested
            self.losses.append(Loss("", "limit", f"{controller} is not limited here: {why}"))


def probe_limits(cgroups: CgroupFactory) -> list[Capability]:
    """Report whether limits work here, by creating groups. Machines also run without them."""
    bad = []
    for name in CONTROLLERS:
        place = cgroups.parents.get(name)
        if place is None:
            bad.append(f"there is no control group {name}")
            continue
        trial = place.path / f"{GROUP_PREFIX}probe-{os.getpid()}-{name}"
        try:
            trial.mkdir()
            trial.rmdir()
        except OSError as error:
            bad.append(f"{name}: {error.strerror}")
    if bad:
        return [Capability("limits", False, "; ".join(bad), _FIX)]
    return [Capability("limits", True, "memory, cpu and pids of live machines")]


def recorded_groups(home: Path) -> list[Path]:
    """Return the groups that the machine of this home created and did not remove."""
    return read_record(home / GROUPS_FILE)


def read_record(record: Path) -> list[Path]:
    """Return the groups listed in a record file."""
    try:
        return [Path(line) for line in record.read_text().splitlines() if line]
    except (OSError, UnicodeDecodeError):
        return []


def remove_recorded_groups(home: Path, groups: list[Path] | None = None) -> list[Path]:
    """Remove the groups of a home, or the given ones, that have no process; return the others."""
    known = recorded_groups(home)
    due = known if groups is None else groups
    left = [path for path in known if path not in due or not remove_group(path)]
    if left != known:
        _write_record(home, left)
    return left if groups is None else [path for path in left if path in groups]


def remove_group(path: Path) -> bool:
    """Remove a group. Returns True if it is gone; a group with processes stays."""
    if not path.name.startswith(GROUP_PREFIX):
        return False
    try:
        path.rmdir()
    except OSError as error:
        return error.errno == errno.ENOENT
    return True


def _write_record(home: Path, groups: list[Path]) -> None:
    with suppress(FileNotFoundError):  # the home is being removed
        (home / GROUPS_FILE).write_text("".join(f"{path}\n" for path in groups))


def _limit_files(controller: str, limits: MachineLimits, version: int) -> list[tuple[str, str]]:
    if controller == "pids":
        return [("pids.max", str(limits.pids))]
    if controller == "memory":
        size = str(limits.memory)
        if version == 2:
            return [("memory.swap.max", "0"), ("memory.max", size)]
        return [("memory.limit_in_bytes", size), ("memory.memsw.limit_in_bytes", size)]
    quota = round(limits.cpu * _CPU_PERIOD_MICROSECONDS)
    if version == 2:
        return [("cpu.max", f"{quota} {_CPU_PERIOD_MICROSECONDS}")]
    return [("cpu.cfs_period_us", str(_CPU_PERIOD_MICROSECONDS)), ("cpu.cfs_quota_us", str(quota))]


def _with_criu_headroom(limits: MachineLimits) -> MachineLimits:
    memory = limits.memory + _CRIU_HEADROOM.memory if limits.memory else 0
    return replace(limits, memory=memory, pids=limits.pids + _CRIU_HEADROOM.pids)

"""Where control groups can be made on this host, for each controller.

Version 1 has a hierarchy for each; version 2 has one for all, and its groups that have processes
cannot hand controllers on: there the nearest group above that does so is used, as long as those
between limit nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

CONTROLLERS = ("memory", "cpu", "pids")
_SUBTREE_CONTROL = "cgroup.subtree_control"


class CgroupParent(NamedTuple):
    """Where groups with a controller can be made."""

    path: Path
    version: int


def find_cgroup_parents(proc_cgroup: str, mountinfo: bytes) -> dict[str, CgroupParent]:
    """By controller; `own` is what /proc/self/cgroup says."""
    found: dict[str, CgroupParent] = {}
    lines = [line.split(":", 2) for line in proc_cgroup.splitlines()]
    for mount in _mounts(mountinfo):
        for number, names, group in lines:
            there = _group_path(mount, group)
            if mount.kind == "cgroup" and there is not None:
                ours = {*names.split(",")} & {*mount.options.split(",")} & {*CONTROLLERS}
                found |= {name: CgroupParent(there, 1) for name in ours}
            elif mount.kind == "cgroup2" and number == "0" and there is not None:
                place = _find_delegating_group(there, Path(mount.mount_point))
                for name in _read_words(place / _SUBTREE_CONTROL) if place else []:
                    if place is not None and name in CONTROLLERS:
                        found[name] = CgroupParent(place, 2)
    return {name: place for name, place in found.items() if place.path.is_dir()}


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
    """A group seen through a mount, which may show a part of the hierarchy only."""
    root = mount.root.rstrip("/")
    if ".." in group.split("/"):  # outside of what this namespace shows
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
    """The group of version 2 below which ours can be made."""
    wanted = [name for name in CONTROLLERS if name in _read_words(own / "cgroup.controllers")]
    with suppress(OSError):  # refused while processes are in it, but for the very first group
        if wanted:
            write_control_file(own / _SUBTREE_CONTROL, " ".join(f"+{name}" for name in wanted))
    place = own
    while not set(CONTROLLERS) & set(_read_words(place / _SUBTREE_CONTROL)):
        if place == mount_point or any(_active_limits(place)):
            return None
        place = place.parent
    return place


def _active_limits(group: Path) -> list[str]:
    """What limits a group of version 2."""
    files = ("memory.max", "memory.high", "pids.max", "cpu.max")
    return [name for name in files if (_read_words(group / name) or ["max"])[0] != "max"]


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []

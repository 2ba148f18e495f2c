"""Finds where control groups can be created on this host, for each controller.

Version 1 has one hierarchy for each controller. Version 2 has one for all, and a group with
processes cannot delegate controllers. There the nearest ancestor that delegates them is used, as
long as no group in between has a limit.
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
    """A group below which groups with a controller can be created."""

    path: Path
    version: int


def find_cgroup_parents(proc_cgroup: str, mountinfo: bytes) -> dict[str, CgroupParent]:
    """Return the parent groups by controller; `proc_cgroup` is the text of /proc/self/cgroup."""
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

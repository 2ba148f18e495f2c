"""Computes the mounts of a machine as a list of steps for its supervisor.

The view is built below an empty directory, which then becomes the root of the machine.
docs/decisions/0005-what-an-overlay-machine-sees.md says what is private, what is read-only, and
why.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PosixPath
from typing import Any

import msgspec

from ortet.errors import Unsupported
from ortet.machines.base import MachineSpec
from ortet.machines.standalone.syscalls import overlay_options

MountStep = dict[str, Any]

EPHEMERAL_DIRS = ("/dev", "/proc", "/run", "/sys", "/tmp", "/var/tmp")
"""Never state: temporary by convention, or without real files."""

# File systems without real files: a machine sees those of the host, read-only.
# fmt: off
_PSEUDO = frozenset((
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts",
    "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore",
    "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
))
# fmt: on
_VOLATILE = frozenset(("tmpfs", "ramfs"))
_MACHINE_MOUNTS = ("/dev", "/proc", "/sys")  # created or bound as a whole
_ESCAPED = re.compile(rb"\\([0-7]{3})")


class HostMount(msgspec.Struct, frozen=True):
    """A mount of the host."""

    at: str
    kind: str
    read_only: bool = False


class HostOverlay(msgspec.Struct, frozen=True):
    """A host directory under an overlay: writes go to `upper`."""

    at: str
    state: bool  # the changes are part of the image
    upper: Path
    work: Path
    layers: tuple[Path, ...] = ()  # system differences between the host and `upper`


class MachinePath(PosixPath):
    """A path into a machine's mounts.

    The path goes through a link with the text "/". If it were resolved, it would name a file of the
    host.
    """

    def resolve(self, strict: bool = False) -> MachinePath:  # noqa: ARG002 - as Path has it
        return self


def parse_mounts(text: bytes) -> list[HostMount]:
    """Parse /proc/self/mountinfo. If there are several mounts at one place, the last one counts."""
    mounts: dict[str, HostMount] = {}
    for line in text.splitlines():
        fields = line.split(b" ")
        mount_point = os.fsdecode(_ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), fields[4]))
        kind = fields[fields.index(b"-") + 1].decode()
        mounts.pop(mount_point, None)
        mounts[mount_point] = HostMount(mount_point, kind, b"ro" in fields[5].split(b","))
    return list(mounts.values())


def dirs_to_overlay(spec: MachineSpec, host: Sequence[HostMount]) -> list[tuple[str, bool]]:
    """Return (directory, is it state) for each overlay except the workspace, parents first."""
    if spec.scope == "host":
        return [
            (
                mounted.at,
                mounted.kind not in _VOLATILE and not is_within(mounted.at, EPHEMERAL_DIRS),
            )
            for mounted in host
            if _takes_files(mounted)
            and not is_within(mounted.at, (str(spec.path), *_MACHINE_MOUNTS))
        ]
    wanted = ["/tmp", "/var/tmp", _home_directory()]
    places = sorted({os.path.realpath(place) for place in wanted if os.path.isdir(place)})
    own = str(spec.path)
    candidates = [place for place in places if place != "/" and not is_within(place, (own,))]
    return [(p, False) for p in candidates if not is_within(p, [q for q in candidates if q != p])]


def mount_steps(
    spec: MachineSpec,
    host: Sequence[HostMount],
    host_overlays: Sequence[HostOverlay],
    *,
    area: Path,
    rootless: bool,
) -> list[MountStep]:
    """Return the steps of all mounts before the workspace itself.

    `area` is a directory for mounts that the machine does not see.
    """
    place = str(spec.path)
    _check_workspace_path(place, host_overlays)
    steps: list[MountStep] = []
    if spec.scope == "workspace":
        steps.append({"do": "bind", "at": "/", "source": "/", "recursive": True, "sealed": True})
    for number, cover in enumerate(host_overlays):
        steps += _overlay_steps(cover, area / f"under{number}", rootless=rootless)
        if spec.scope == "workspace":
            below = [m.at for m in host if m.at != cover.at and is_within(m.at, (cover.at,))]
            steps += [_read_only_bind(at) for at in below if not is_within(at, (place,))]
    if spec.scope == "host":
        covered = {cover.at for cover in host_overlays}
        rest = [
            m.at
            for m in host
            if m.at not in covered and not is_within(m.at, (place, *_MACHINE_MOUNTS))
        ]
        steps += [_read_only_bind(at) for at in rest if os.path.exists(at)]
        steps.append({"do": "bind", "at": "/dev", "source": "/dev", "recursive": True})
        steps.append({**_read_only_bind("/sys"), "recursive": True})
    steps.append({"do": "hold", "at": "/proc"})
    steps += _hides(spec)
    steps.append({"do": "proc", "at": "/proc"})
    if os.path.isdir("/dev/shm"):
        steps.append({"do": "tmpfs", "at": "/dev/shm", "options": "mode=1777"})
    steps.append({"do": "mkdir", "at": place})
    return steps


def live_mount_steps(
    spec: MachineSpec,
    host: Sequence[HostMount],
    host_overlays: Sequence[HostOverlay],
    *,
    area: Path,
) -> list[MountStep]:
    """Return the steps for a machine whose processes are captured by CRIU.

    CRIU must create every mount itself, or get it from outside at a restore.
    """
    place = str(spec.path)
    _check_workspace_path(place, host_overlays)
    steps: list[MountStep] = [{"do": "hold", "at": str(area / "hold"), "host": True}]
    for number, cover in enumerate(host_overlays):
        steps += _overlay_steps(cover, area / f"under{number}", rootless=False)
    covered = {cover.at for cover in host_overlays}
    rest = [
        m.at for m in host if m.at not in covered and not is_within(m.at, (place, *_MACHINE_MOUNTS))
    ]
    steps += [_read_only_bind(at) for at in rest if os.path.exists(at)]
    steps += _hides(spec)
    steps += [{"do": "mkdir", "at": at} for at in ("/dev", "/proc", "/sys", "/run", place)]
    steps += [{"do": "devices", "at": "/dev"}, {"do": "devpts", "at": "/dev/pts"}]
    steps += [{"do": "sysfs", "at": "/sys"}, {"do": "proc", "at": "/proc"}]
    return steps


def is_within(path: str, places: Iterable[str]) -> bool:
    """Return True if the path is one of these places or below one."""
    return any(path == place or path.startswith(place.rstrip("/") + "/") for place in places)


def _overlay_steps(overlay: HostOverlay, under: Path, *, rootless: bool) -> Iterator[MountStep]:
    lowers = [overlay.at]
    if overlay.layers:
        # Overlayfs refuses a layer that is inside the directory it is stacked on. So that directory
        # first becomes its own overlay, with an empty layer.
        yield {"do": "tmpfs", "at": str(under), "options": "mode=700", "host": True}
        for name in ("empty", "view"):
            yield {"do": "mkdir", "at": str(under / name), "host": True}
        options = overlay_options([overlay.at, str(under / "empty")])
        yield {"do": "overlay", "at": str(under / "view"), "options": options, "host": True}
        lowers = [*map(str, overlay.layers), str(under / "view")]
    extra = ["xino=off", "volatile"]
    extra += ["userxattr"] if rootless else ["redirect_dir=nofollow", "metacopy=off", "index=off"]
    options = overlay_options(lowers, str(overlay.upper), str(overlay.work), extra=extra)
    step: MountStep = {"do": "overlay", "at": overlay.at, "options": options}
    if overlay.state and overlay.at != "/":
        # For a file system that cannot be a lower layer.
        step["instead"] = {"source": overlay.at, "sealed": True}
    elif not overlay.state:
        # In a user namespace, the kernel refuses a directory that contains mounts of the host.
        scratch = is_within(overlay.at, EPHEMERAL_DIRS)
        step["instead"] = {"source": str(overlay.upper)} if scratch else {}
    yield step


def _read_only_bind(directory: str) -> MountStep:
    """Return the step for a read-only mount of the host, which may be gone by now."""
    return {"do": "bind", "at": directory, "source": directory, "sealed": True, "optional": True}


def _hides(spec: MachineSpec) -> Iterator[MountStep]:
    """Yield steps for hidden places, except those that contain the workspace or are inside it."""
    place = str(spec.path)
    for path in map(os.path.realpath, spec.hide):
        if os.path.exists(path) and not is_within(place, (path,)) and not is_within(path, (place,)):
            yield {"do": "hide", "at": path, "directory": os.path.isdir(path)}


def _check_workspace_path(place: str, host_overlays: Sequence[HostOverlay]) -> None:
    """Raise Unsupported unless the workspace's directory exists or can be created in an overlay."""
    if os.path.isdir(place) or is_within(place, [cover.at for cover in host_overlays]):
        return
    raise Unsupported(
        "no_place",
        f"{place} is not there and cannot be made inside a machine of scope 'workspace': make this "
        "directory on the host, or use scope='host' as root",
    )


def _takes_files(mounted: HostMount) -> bool:
    writable = mounted.kind not in _PSEUDO and not mounted.read_only
    return mounted.at == "/" or (writable and os.path.isdir(mounted.at))


def _home_directory() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:  # a uid without a name, as in containers
        return "/"

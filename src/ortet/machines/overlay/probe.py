"""Tests whether this host can run overlay machines, and says what to change if not."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from ortet.errors import OrtetError
from ortet.machines.base import Capability
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.machines.standalone.syscalls import is_privileged, overlay_options

_SWITCHES = (
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "sysctl kernel.unprivileged_userns_clone=1",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


def probe_overlay(place: Path, zygote: Zygote) -> list[Capability]:
    """Start a machine with an overlay at `place`, and close it."""
    if sys.platform != "linux":
        return [Capability("overlay", False, "overlay mounts exist on Linux only", "use Linux")]
    how = "as root" if is_privileged() else "in a user namespace"
    try:
        with tempfile.TemporaryDirectory(prefix="probe-", dir=place) as name:
            try:
                _try(Path(name), zygote, rootless=not is_privileged())
            finally:
                _make_removable(Path(name))
    except (OrtetError, OSError) as error:
        return [Capability("overlay", False, f"{how}: {error}", _fix(place))]
    return [Capability("overlay", True, how)]


def _try(place: Path, zygote: Zygote, *, rootless: bool) -> None:
    for name in ("lower", "upper", "work", "root"):
        (place / name).mkdir()
    extra = ["xino=off", "volatile", "userxattr" if rootless else "redirect_dir=on"]
    options = overlay_options(["p/lower"], "p/upper", "p/work", extra=extra)
    machine = zygote.start(
        {
            "root": str(place / "root"),
            "held": {"p": str(place)},
            "steps": [
                {"do": "bind", "at": "/", "source": "/", "recursive": True, "sealed": True},
                {"do": "hold", "at": "/proc"},
                {"do": "proc", "at": "/proc"},
            ],
            "place": str(place / "lower"),
            "workspace": options,
        }
    )
    try:
        machine.ready()
    finally:
        machine.close()


def _fix(place: Path) -> str:
    if not is_privileged():
        for path, bad, command in _SWITCHES:
            try:
                if Path(path).read_text().strip() == bad:
                    return command
            except OSError:
                continue
    return (
        f"put the store on ext4, xfs, btrfs or tmpfs ({place} may be on another filesystem), or "
        "run outside of this container"
    )


def _make_removable(place: Path) -> None:
    """Make a directory removable that the kernel has created without permissions."""
    inner = place / "work" / "work"
    if inner.is_dir():
        os.chmod(inner, 0o700)

"""Probes the features of this host, and names a remedy for each one that is missing."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from ortet.machines.base import Capability, Engine
from ortet.machines.live.cgroups import CgroupFactory, probe_limits
from ortet.machines.live.criu.binary import find_criu, probe_criu
from ortet.machines.live.network.slirp import probe_network
from ortet.machines.overlay.probe import probe_overlay
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.machines.restore.write_tree import FICLONE
from ortet.machines.standalone.syscalls import is_privileged

MIN_INOTIFY_WATCHES = 65_536
MIN_INOTIFY_INSTANCES = 64
MIN_FREE_BYTES = 1 << 30
SLOW_FSYNC_SECONDS = 0.02
MIN_SQLITE_VERSION = (3, 51, 3)
"""Older versions of SQLite can lose a write-ahead log."""

_INOTIFY = Path("/proc/sys/fs/inotify")


def probe_host(store: Path, engines: Iterable[Engine] = (), *, criu: str = "") -> list[Capability]:
    """Return one capability for every feature that Ortet can use.

    `store` need not exist, and is not created.
    """
    engines = list(engines)
    capabilities = [capability for engine in engines for capability in engine.probe()]
    with tempfile.TemporaryDirectory(
        prefix=".ortet-doctor-", dir=_nearest_directory(store)
    ) as name:
        directory = Path(name)
        if "overlay" not in {engine.name for engine in engines}:
            zygote = Zygote(rootless=not is_privileged())
            try:
                capabilities += probe_overlay(directory, zygote)
            finally:
                zygote.close()
        if "criu" not in {engine.name for engine in engines}:
            capabilities += probe_criu(find_criu(criu))
        capabilities += [*probe_limits(CgroupFactory()), *probe_network()]
        capabilities += [
            _reflink(directory),
            _sync(directory),
            _space(directory),
            _watches(),
            _sqlite(),
        ]
    return capabilities


def _nearest_directory(path: Path) -> Path:
    """Return the nearest existing ancestor of `path`, else the temporary directory.

    The temporary directory is used if the ancestor is not writable.
    """
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path if os.access(path, os.W_OK) else Path(tempfile.gettempdir())


def _reflink(directory: Path) -> Capability:
    """Test copies that share content until one is changed, on the file system of the store."""
    with (directory / "one").open("wb+") as source, (directory / "two").open("wb") as copy:
        source.write(b"x" * 4096)
        source.flush()
        try:
            fcntl.ioctl(copy.fileno(), FICLONE, source.fileno())
        except OSError as error:
            why = f"the file system cannot share the content of copies ({error.strerror})"
            fix = "put the store on btrfs or xfs; the overlay engine does not need it"
            return Capability("reflink", False, why, fix)
    return Capability("reflink", True, "copies of files share their content")


def _sync(directory: Path) -> Capability:
    """Measure the time of an fsync. Every commit waits for one."""
    times = []
    with (directory / "sync").open("wb") as file:
        for _ in range(9):
            file.write(b"x" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    median = sorted(times)[len(times) // 2]
    detail = f"{median * 1000:.2f} ms"
    if median <= SLOW_FSYNC_SECONDS:
        return Capability("fsync", True, detail)
    return Capability("fsync", False, f"{detail} for each commit", "put the store on a local SSD")


def _space(directory: Path) -> Capability:
    free = shutil.disk_usage(directory).free
    detail = f"{free / (1 << 30):.1f} GiB free"
    if free >= MIN_FREE_BYTES:
        return Capability("disk", True, detail)
    return Capability("disk", False, detail, "free some space, or run `ortet sweep`")


def _watches() -> Capability:
    if not _INOTIFY.is_dir():
        why = f"{platform.system()} has no inotify"
        return Capability("watch", False, why, "without it, each commit checks every file")
    watches, instances = (
        int((_INOTIFY / name).read_text()) for name in ("max_user_watches", "max_user_instances")
    )
    detail = f"{watches} directories, {instances} watchers"
    if watches >= MIN_INOTIFY_WATCHES and instances >= MIN_INOTIFY_INSTANCES:
        return Capability("watch", True, detail)
    name, minimum = (
        ("watches", MIN_INOTIFY_WATCHES)
        if watches < MIN_INOTIFY_WATCHES
        else ("instances", MIN_INOTIFY_INSTANCES)
    )
    return Capability("watch", False, detail, f"sysctl fs.inotify.max_user_{name}={minimum}")


def _sqlite() -> Capability:
    import apsw  # noqa: PLC0415 - the import takes 10 ms, and only this function needs it

    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")) >= MIN_SQLITE_VERSION:
        return Capability("sqlite", True, version)
    minimum = ".".join(map(str, MIN_SQLITE_VERSION))
    fix = f"{sys.executable} -m pip install --upgrade apsw"
    return Capability("sqlite", False, f"{version} is older than {minimum}", fix)

"""Name resolution in a live machine: its /etc/resolv.conf while it has an outbound network.

It is a module of its own because the difference of the system must not contain this file.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ortet.machines.base import Network
from ortet.machines.overlay.mount_plan import HostOverlay, is_within

RESOLV_CONF = "/etc/resolv.conf"
RESOLV_CONF_CONTENT = (
    b"# by ortet: the name server that is this machine's way out\nnameserver 10.0.2.3\n"
)
"""Content of the file that Ortet writes; it is no state of the machine.

The host's file may name a server on its own loopback, which a machine cannot reach.
"""


def update_resolv_conf(host_overlays: Sequence[HostOverlay], network: Network) -> None:
    """Write the file into the upper directory of a machine that is about to start, or remove it.

    A file that the machine has changed itself stays.
    """
    holders = [cover for cover in host_overlays if is_within(RESOLV_CONF, (cover.at,))]
    if not holders:
        return
    cover = max(holders, key=lambda cover: len(cover.at))
    path = cover.upper / os.path.relpath(RESOLV_CONF, cover.at)
    if network == "none":
        if is_written_by_ortet(path):
            path.unlink()
    elif not os.path.lexists(path):
        _make_directory(path.parent, cover)
        path.write_bytes(RESOLV_CONF_CONTENT)
        path.chmod(0o644)


def is_written_by_ortet(path: str | bytes | os.PathLike[str]) -> bool:
    """Return True if the file has exactly the content that Ortet writes."""
    with suppress(OSError):
        st = os.lstat(path)
        if stat.S_ISREG(st.st_mode) and st.st_size == len(RESOLV_CONF_CONTENT):
            with open(path, "rb") as file:
                return file.read() == RESOLV_CONF_CONTENT
    return False


def _make_directory(path: Path, overlay: HostOverlay) -> None:
    """Create a directory in an upper directory, with the attributes of the host's directory."""
    if path.is_dir() or path == overlay.upper:
        return
    _make_directory(path.parent, overlay)
    path.mkdir()
    host = os.path.join(overlay.at, path.relative_to(overlay.upper))
    with suppress(OSError):
        st = os.stat(host)
        shutil.copystat(host, path)
        os.chown(path, st.st_uid, st.st_gid)
        os.chmod(path, stat.S_IMODE(st.st_mode))

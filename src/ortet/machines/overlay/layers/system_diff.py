"""The changes of a machine outside of its workspace, as a difference from this host."""

from __future__ import annotations

import filecmp
import os
import platform
import pwd
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from ortet._util.codec import checksum, decode, encode
from ortet.history.records import Flag, Layer, TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Loss
from ortet.machines.capture.entry import read_xattrs
from ortet.machines.capture.stat_index import NEVER_RACY
from ortet.machines.overlay.layers.resolv_conf import RESOLV_CONF, is_written_by_ortet
from ortet.machines.overlay.layers.store import LayerStore, whiteout_entry, write_layer
from ortet.machines.overlay.mount_plan import EPHEMERAL_DIRS, HostOverlay, is_within
from ortet.machines.overlay.upper.entry import UpperDirectory
from ortet.machines.overlay.upper.inotify import UpperWatch
from ortet.machines.overlay.upper.scanner import UpperScanner
from ortet.machines.restore.write_tree import TreeItem
from ortet.objects.base import Kind, ObjectStore

_PACKAGES = ("/var/lib/dpkg/status", "/var/lib/rpm/rpmdb.sqlite", "/lib/apk/db/installed")
_CACHES = ("/var/cache",)  # caches: they can be created again at any time
_HOST_IDENTITY_FILES = ("/etc/machine-id",)  # every copy has its own


def host_fingerprint() -> str:
    """Return an id of the host that a difference applies to: release, packages, processor."""
    parts = [platform.machine().encode()]
    for path in ("/etc/os-release", *_PACKAGES):
        try:
            parts.append(path.encode() + b"\0" + Path(path).read_bytes())
        except OSError:
            continue
    return checksum(*parts).hex()


PathFilter = Callable[[str, bool], bool]
"""(path on the host, is it a directory) -> is it left out of a difference."""


def is_no_system_state(machine_dirs: Sequence[str]) -> PathFilter:
    """Return the filter for the system: caches, and what every host has for itself.

    `machine_dirs` are the machine's own places, which are never part of a difference.
    """
    skipped = frozenset(
        (*EPHEMERAL_DIRS, *_CACHES, *_HOST_IDENTITY_FILES, *machine_dirs, f"{_home()}/.cache")
    )

    def is_skipped(path: str, is_dir: bool) -> bool:
        if is_dir and path.startswith("/home/") and path.endswith("/.cache"):
            return path.count("/") == 3
        return path in skipped

    return is_skipped


class HostDifference:
    """The rules of a difference from one directory of this host.

    A removed name is an entry with WHITEOUT, and a directory that hides that of the host has
    OPAQUE. Files that are equal on the host are left out.
    """

    def __init__(
        self,
        objects: ObjectStore,
        mount_point: str,
        *,
        machine_dirs: Sequence[str],
        is_skipped: PathFilter,
    ) -> None:
        self._objects = objects
        self._mount_point = os.fsencode(mount_point)
        self._machine_dirs = machine_dirs
        self._is_skipped = is_skipped

    def is_skipped(self, path: bytes, is_dir: bool) -> bool:
        return self._is_skipped(os.fsdecode(self._host_path(path)), is_dir)

    def removed_entry(self, path: bytes) -> TreeEntry | None:
        """Return a whiteout if the host has the name; None if only a layer had it."""
        if not os.path.lexists(self._host_path(path)):
            return None
        return replace(
            whiteout_entry(path.rpartition(b"/")[2]), uid=0, gid=0, flags=int(Flag.WHITEOUT)
        )

    def is_unchanged(self, fd: int, raw: bytes, st: os.stat_result, path: bytes) -> bool:
        """Return True if a file equals that of the host, or was put there by Ortet."""
        host = self._host_path(path)
        here = b"/proc/self/fd/%d/%s" % (fd, raw)
        if host == RESOLV_CONF.encode() and is_written_by_ortet(here):
            return True
        try:
            its = os.lstat(host)
            if _comparable_stat(its) != _comparable_stat(st) or read_xattrs(host) != read_xattrs(
                here
            ):
                return False
            if stat.S_ISLNK(st.st_mode):
                return os.readlink(host) == os.readlink(here)
            return not stat.S_ISREG(st.st_mode) or filecmp.cmp(host, here, shallow=False)
        except OSError:
            return False

    def directory_entry(self, node: UpperDirectory, entry: TreeEntry) -> TreeEntry:
        opaque = node.marks is not None and node.marks[0]
        if (opaque and os.path.isdir(self._host_path(node.path))) or (
            node.below is not None and node.below.flags & Flag.OPAQUE
        ):
            return replace(entry, flags=int(Flag.OPAQUE))
        return entry

    def has_own_changes(self, node: UpperDirectory, entry: TreeEntry) -> bool:
        """Return True if a directory differs from the host, apart from its names and its mtime."""
        where = self._host_path(node.path)
        if entry.flags:
            return True
        try:
            its = os.lstat(where)
        except OSError:  # a new directory, but a mount point for our own places does not count
            return not any(is_within(own, (os.fsdecode(where),)) for own in self._machine_dirs)
        same = (its.st_mode, its.st_uid, its.st_gid) == (entry.mode, entry.uid, entry.gid)
        return not same or self._xattrs_differ(where, entry)

    def _host_path(self, path: bytes) -> bytes:
        return os.path.join(self._mount_point, path)

    def _xattrs_differ(self, where: bytes, entry: TreeEntry) -> bool:
        theirs = read_xattrs(where)
        oid = self._objects.put(Kind.META, encode(theirs)) if theirs else b""
        return oid != entry.xattrs


class SystemDiffScanner:
    """Scans the upper directory over one host directory. The result is a difference, not a tree.

    A file with a ctime at or after `horizon` is racy and compared again.

    Args:
        below: The difference between the host and this directory.
        machine_dirs: The machine's own places, which are never part of a difference.
        is_skipped: What is left out of the difference.
    """

    def __init__(
        self,
        objects: ObjectStore,
        trees: Trees,
        overlay: HostOverlay,
        *,
        below: Layer | None,
        machine_dirs: Sequence[str],
        is_skipped: PathFilter,
        watch: UpperWatch | None = None,
    ) -> None:
        empty = trees.empty()
        nothing = TreeEntry(b"", stat.S_IFDIR, 0, data=empty.oid, cid=empty.cid)
        self.horizon = NEVER_RACY
        self._objects = objects
        self._mount_point = overlay.at
        self._empty = empty.oid
        self._rules = HostDifference(
            objects, overlay.at, machine_dirs=machine_dirs, is_skipped=is_skipped
        )
        self._scanner = UpperScanner(
            objects,
            trees,
            overlay.upper,
            below=nothing if below is None else below.root,
            is_root=True,
            watch=watch,
            difference=self._rules,
        )
        self._last: tuple[TreeEntry, Layer | None] | None = None
        self._groups = [] if below is None else layer_hardlink_groups(objects, below)

    def difference(self) -> Layer | None:
        """Return the difference as a layer, or None if nothing differs from the host."""
        self._scanner.horizon = self.horizon
        root = self._scanner.scan()
        if self._last is None or self._last[0] is not root:
            self._last = root, self._layer(root)
        return self._last[1]

    def close(self) -> None:
        self._scanner.close()

    def _layer(self, root: TreeEntry) -> Layer | None:
        if root.data == self._empty and not self._rules.has_own_changes(self._scanner.root, root):
            return None
        groups = self._scanner.hardlink_groups(self._groups)
        links = self._objects.put(Kind.META, encode(groups)) if groups else b""
        return Layer(os.fsencode(self._mount_point), root, links)


def _comparable_stat(st: os.stat_result) -> tuple[int, ...]:
    return st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_mtime_ns, st.st_rdev


def _home() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir.rstrip("/")
    except KeyError:  # a uid without a name, as in containers
        return ""


def layer_hardlink_groups(objects: ObjectStore, layer: Layer) -> list[list[bytes]]:
    return decode(list[list[bytes]], objects.get(Oid(layer.links))) if layer.links else []


def layer_directory_name(layer: Layer) -> str:
    """Return the name of the layer directory for a difference."""
    return f"system-{checksum(encode(layer)).hex()}"


def ensure_system_layer(
    objects: ObjectStore, trees: Trees, layer_store: LayerStore, layer: Layer
) -> Path:
    """Return the difference as a layer over the host. It is written once."""
    return layer_store.ensure_layer(
        layer_directory_name(layer),
        layer.root,
        lambda place: write_system_layer(objects, trees, layer, place),
    )


def write_system_layer(objects: ObjectStore, trees: Trees, layer: Layer, place: Path) -> list[Loss]:
    """Write a difference into an empty directory, with whiteouts and opaque marks of overlayfs."""
    items = [TreeItem(b"", replace(layer.root, flags=0), b"")]
    opaque = []
    for path, entry in trees.walk(layer.root):
        if entry.flags & Flag.OPAQUE:
            opaque.append(path)
        plain = (
            whiteout_entry(entry.name) if entry.flags & Flag.WHITEOUT else replace(entry, flags=0)
        )
        items.append(TreeItem(path, plain, path))
    losses = write_layer(objects, place, items, layer_hardlink_groups(objects, layer))
    for path in opaque:
        os.setxattr(os.path.join(os.fsencode(place), path), "trusted.overlay.opaque", b"y")
    return losses

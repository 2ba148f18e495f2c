"""What a machine changed outside of its workspace: a difference against this very host."""

from __future__ import annotations

import filecmp
import os
import platform
import pwd
import stat
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from ortet._util.codec import checksum, decode, encode
from ortet.history.records import Entry, Flag, Layer
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Loss
from ortet.machines.capture.entry import read_xattrs
from ortet.machines.live.network import resolver
from ortet.machines.overlay.delta import whiteout, write
from ortet.machines.overlay.layers import Bases
from ortet.machines.overlay.mount_plan import NOISE, Cover, within
from ortet.machines.overlay.upper.entry import Taker
from ortet.machines.overlay.upper.inotify import UpperWatch
from ortet.machines.overlay.upper.scanner import Upper
from ortet.machines.overlay.upper.uppernode import Node
from ortet.machines.restore.write_tree import Item
from ortet.objects.base import Kind, Objects

_PACKAGES = ("/var/lib/dpkg/status", "/var/lib/rpm/rpmdb.sqlite", "/lib/apk/db/installed")
_CACHES = ("/var/cache",)  # by the standard that defines them: can be made again at any time
_OWN_NAME = ("/etc/machine-id",)  # every copy has another


def fingerprint() -> str:
    """Names the host a difference is against: its release, its packages, its processor."""
    parts = [platform.machine().encode()]
    for path in ("/etc/os-release", *_PACKAGES):
        try:
            parts.append(path.encode() + b"\0" + Path(path).read_bytes())
        except OSError:
            continue
    return checksum(*parts).hex()


class SystemTaker(Taker):
    """Compares each name with the host's: what is as there is no difference."""

    def __init__(
        self, objects: Objects, trees: Trees, below: Entry, *, at: str, own: Sequence[str]
    ) -> None:
        super().__init__(objects, trees, below, root=True)
        self._at = os.fsencode(at)
        self._own = tuple(own)
        self._noise = frozenset((*NOISE, *_CACHES, *_OWN_NAME, *own, f"{_home()}/.cache"))

    def host(self, path: bytes) -> bytes:
        """Where the host has it."""
        return os.path.join(self._at, path)

    def skip(self, path: bytes, is_dir: bool) -> bool:
        where = os.fsdecode(self.host(path))
        if is_dir and where.startswith("/home/") and where.endswith("/.cache"):
            return where.count("/") == 3
        return where in self._noise

    def whiteout(self, path: bytes) -> Entry | None:
        """A mark where the host has the name; nothing where only a layer between had it."""
        if not os.path.lexists(self.host(path)):
            return None
        return replace(whiteout(path.rpartition(b"/")[2]), uid=0, gid=0, flags=int(Flag.WHITEOUT))

    def entry(
        self, node: Node, raw: bytes, st: os.stat_result, *, fd: int, path: bytes, mapped: bool
    ) -> tuple[Entry | None, os.stat_result]:
        entry, st = super().entry(node, raw, st, fd=fd, path=path, mapped=mapped)
        if entry is not None and not entry.flags and self._is_none(fd, raw, st, path):
            return None, st
        return entry, st

    def _is_none(self, fd: int, raw: bytes, st: os.stat_result, path: bytes) -> bool:
        """Is it the host's own file, copied up and put back, or one that we gave the machine?"""
        host = self.host(path)
        here = b"/proc/self/fd/%d/%s" % (fd, raw)
        if host == resolver.PLACE.encode() and resolver.is_ours(here):
            return True
        try:
            its = os.lstat(host)
            if _plain(its) != _plain(st) or read_xattrs(host) != read_xattrs(here):
                return False
            if stat.S_ISLNK(st.st_mode):
                return os.readlink(host) == os.readlink(here)
            return not stat.S_ISREG(st.st_mode) or filecmp.cmp(host, here, shallow=False)
        except OSError:
            return False


class SystemUpper(Upper):
    """The upper directory over one host directory; adds up to a difference, not to a whole tree.

    In it a taken-away name is an Entry with WHITEOUT, a directory that hides the host's has OPAQUE.
    What is as on the host is left out, as are directories of which only the time differs.
    `below` is the difference between the host and this directory; `own` are the machine's places.
    """

    def __init__(
        self,
        objects: Objects,
        trees: Trees,
        cover: Cover,
        *,
        below: Layer | None,
        own: Sequence[str],
        watch: UpperWatch | None = None,
        takes: type[SystemTaker] = SystemTaker,
    ) -> None:
        empty = trees.empty()
        nothing = Entry(b"", stat.S_IFDIR, 0, data=empty.oid, cid=empty.cid)
        root = nothing if below is None else below.root
        taker = takes(objects, trees, root, at=cover.at, own=own)
        super().__init__(
            objects, trees, cover.upper, below=root, root=True, watch=watch, taker=taker
        )
        self.at = cover.at
        self._host = taker.host
        self._empty = empty.oid
        self._own = own
        self._last: tuple[Entry, Layer | None] | None = None
        self._groups = [] if below is None else links_of(objects, below)

    def difference(self) -> Layer | None:
        """None when nothing differs from the host."""
        root = self.scan()
        if self._last is None or self._last[0] is not root:
            self._last = root, self._layer(root)
        return self._last[1]

    def _layer(self, root: Entry) -> Layer | None:
        if root.data == self._empty and not self._differs(self.root, root):
            return None
        groups = self.groups(self._groups)
        links = self._objects.put(Kind.META, encode(groups)) if groups else b""
        return Layer(os.fsencode(self.at), root, links)

    def _obey(self, node: Node, fd: int) -> bool:  # noqa: ARG002 - ignore files rule a workspace
        return False

    def _fold(self, node: Node) -> None:
        """As for any upper directory, but one without a difference is no change."""
        parent, raw = node.parent, os.fsencode(node.name)
        super()._fold(node)
        if parent is None or raw not in parent.changes:
            return
        entry = parent.changes[raw]
        if entry is not None and entry.data == self._empty and not self._differs(node, entry):
            parent.changes[raw] = None

    def _summary(self, node: Node) -> Entry:
        entry = super()._summary(node)
        opaque = node.marks is not None and node.marks[0]
        if (opaque and os.path.isdir(self._host(node.path))) or (
            node.below is not None and node.below.flags & Flag.OPAQUE
        ):
            return replace(entry, flags=int(Flag.OPAQUE))
        return entry

    def _differs(self, node: Node, entry: Entry) -> bool:
        """Does a directory without changed names say anything by itself?"""
        where = self._host(node.path)
        if entry.flags:
            return True
        try:
            its = os.lstat(where)
        except OSError:  # new: but a mere mount point for one of our own places says nothing
            return not any(within(own, (os.fsdecode(where),)) for own in self._own)
        same = (its.st_mode, its.st_uid, its.st_gid) == (entry.mode, entry.uid, entry.gid)
        return not same or self._xattrs_differ(where, entry)

    def _xattrs_differ(self, where: bytes, entry: Entry) -> bool:
        theirs = read_xattrs(where)
        oid = self._objects.put(Kind.META, encode(theirs)) if theirs else b""
        return oid != entry.xattrs


def _plain(st: os.stat_result) -> tuple[int, ...]:
    return st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_mtime_ns, st.st_rdev


def _home() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir.rstrip("/")
    except KeyError:  # a uid without a name, as containers have
        return ""


def links_of(objects: Objects, layer: Layer) -> list[list[bytes]]:
    return decode(list[list[bytes]], objects.get(Oid(layer.links))) if layer.links else []


def layer_of(layer: Layer) -> str:
    """The name of the layer directory that holds a difference."""
    return f"system-{checksum(encode(layer)).hex()}"


def stack_system(objects: Objects, trees: Trees, bases: Bases, layer: Layer) -> Path:
    """The difference as a layer over the host, written once."""
    return bases.make(layer_of(layer), layer.root, lambda place: lay(objects, trees, layer, place))


def lay(objects: Objects, trees: Trees, layer: Layer, place: Path) -> list[Loss]:
    """Write a difference into an empty directory, with the marks that the kernel knows."""
    items = [Item(b"", replace(layer.root, flags=0), b"")]
    opaque = []
    for path, entry in trees.walk(layer.root):
        if entry.flags & Flag.OPAQUE:
            opaque.append(path)
        plain = whiteout(entry.name) if entry.flags & Flag.WHITEOUT else replace(entry, flags=0)
        items.append(Item(path, plain, path))
    losses = write(objects, place, items, links_of(objects, layer))
    for path in opaque:
        os.setxattr(os.path.join(os.fsencode(place), path), "trusted.overlay.opaque", b"y")
    return losses

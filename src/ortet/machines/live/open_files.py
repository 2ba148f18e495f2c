"""Files that are no state (ignored, too large, caches), but that running processes hold: open,
mapped, watched, or as their directory. Without them CRIU cannot bring the processes back, so they
travel with these."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from ortet.errors import Conflict
from ortet.history.records import Entry, Image, Layer
from ortet.history.tree.tree import Trees
from ortet.machines.base import Loss
from ortet.machines.capture.entry import capture, put_xattrs, state_time
from ortet.machines.dirfd import directory
from ortet.machines.live.criu.rpc import entries, parse
from ortet.machines.overlay.mount_plan import Cover, within
from ortet.machines.restore.write_entry import Writer
from ortet.machines.restore.write_tree import Item, build
from ortet.objects.base import Objects

WORKSPACE = b""
"""The `mount` of the Layer with the workspace's: wherever that is."""

FILES = "files.img"
"""Where CRIU writes down open files."""

_LARGEST = 256 << 20  # bytes of one file; more was left out for a reason
_REGULAR, _INOTIFY, _UNIX = 3, 13, 16  # fields of CRIU's FileEntry
_NAME, _BOUND = 6, 11  # of a regular file; of a unix socket
_WATCHES, _HANDLE, _PATH = 5, 7, 4  # of an inotify; of a watch; of what it is on


class Held:
    """Looks for them in one machine; `place` is its workspace, as it sees it."""

    def __init__(
        self, objects: Objects, trees: Trees, *, place: str, covers: Sequence[Cover]
    ) -> None:
        self._objects = objects
        self._trees = trees
        self._inside = Path("/")
        self._place = place
        self._covers = [
            (cover.at.rstrip("/") + "/", f"{cover.upper}/", os.fsencode(cover.at))
            for cover in sorted(covers, key=lambda cover: len(cover.at), reverse=True)
        ]
        self._read: dict[bytes, list[str]] = {}  # what the last dump said, as it was understood

    def look(
        self, image: Image, aside: Sequence[Layer], *, images: Path, inside: Path
    ) -> list[Layer]:
        """`aside` with what processes dumped to `images` hold that neither it nor `image` has.

        To be called while they stand still; `inside` is their root as we see it. Conflict when a
        file is too large to be carried without having been asked for.
        """
        self._inside = inside
        layers = {layer.mount: layer for layer in aside}
        system = () if image.system is None else image.system.layers
        known = {layer.mount: layer.root for layer in system} | {WORKSPACE: image.root}
        found: dict[bytes, dict[bytes, Entry]] = {}
        files = entries(images / FILES)
        self._read = {one: self._read.get(one) or list(names_in(one)) for one in files}
        for name in sorted({name for names in self._read.values() for name in names}):
            mount = self._mount(name)
            if mount is not None:
                at = self._place if mount == WORKSPACE else os.fsdecode(mount)
                path = os.fsencode(os.path.relpath(name, at))
                has = [known[mount]] if mount in known else []
                has += [layers[mount].root] if mount in layers else []
                self._take(path, at, has, found.setdefault(mount, {}))
        for mount, some in found.items():
            if some:
                layers[mount] = self._layer(mount, layers.get(mount), some)
        return list(layers.values())

    def _mount(self, name: str) -> bytes | None:
        """Whose file it is; None for one that will be there anyhow."""
        if within(name, (self._place,)):
            return None if name == self._place else WORKSPACE
        for at, upper, mount in self._covers:
            if name.startswith(at):
                try:
                    mode = os.lstat(upper + name[len(at) :]).st_mode
                except OSError:  # the host's own
                    return None
                made_anew = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
                shows_through = stat.S_ISDIR(mode) and os.path.isdir(name)
                return None if made_anew or shows_through else mount
        return None

    def _take(self, path: bytes, at: str, has: Sequence[Entry], found: dict[bytes, Entry]) -> None:
        """A path, and the directories that lead to it."""
        where = Path(f"{self._inside}{at}") / os.fsdecode(path)
        if any(self._trees.resolve(root, path) for root in has) or not os.path.lexists(where):
            return
        parts = path.split(b"/")
        for depth in range(1, len(parts)):
            above = b"/".join(parts[:depth])
            if above not in found:
                found[above] = self._directory(Path(f"{self._inside}{at}/{os.fsdecode(above)}"))
        st = where.lstat()
        if stat.S_ISDIR(st.st_mode):
            found[path] = self._directory(where)
            return
        if st.st_size > _LARGEST:
            raise Conflict(
                "cannot_freeze",
                f"a process has {where.relative_to(self._inside)} open, {st.st_size} bytes that "
                "commits leave out: keep such a file on the host, take it out of .ortetignore, or "
                "stop the process",
            )
        losses: list[Loss] = []
        with directory(where.parent) as fd:
            entry = capture(self._objects, fd, parts[-1], st, path=path, losses=losses)
        if entry is not None:
            found[path] = entry

    def _directory(self, where: Path) -> Entry:
        """Without what is in it."""
        st = where.lstat()
        xattrs = put_xattrs(self._objects, os.fsencode(where))
        name = os.fsencode(where.name)
        return Entry(name, st.st_mode, state_time(st), st.st_uid, st.st_gid, xattrs=xattrs)

    def _layer(self, mount: bytes, layer: Layer | None, found: dict[bytes, Entry]) -> Layer:
        if layer is not None:
            new = {p: e for p, e in found.items() if self._trees.resolve(layer.root, p) is None}
            return replace(layer, root=self._trees.patch_paths(layer.root, new))
        at = self._place if mount == WORKSPACE else os.fsdecode(mount)
        empty = self._trees.empty()
        top = self._directory(Path(f"{self._inside}{at}"))
        root = replace(top, name=b"", data=empty.oid, cid=empty.cid)
        return Layer(mount, self._trees.patch_paths(root, found))


def give_held(objects: Objects, trees: Trees, upper: Path, layers: Sequence[Layer]) -> list[Loss]:
    """Put the workspace's into its upper directory, before anything runs on it."""
    writer = Writer(objects)
    for layer in layers:
        if layer.mount == WORKSPACE:
            items = [
                Item(path, entry, path)
                for path, entry in trees.walk(layer.root)
                if not os.path.lexists(os.path.join(os.fsencode(upper), path))
            ]
            with directory(upper) as fd:
                build(objects, fd, items, writer=writer)
    return writer.losses


def names_in(entry: bytes) -> Iterator[str]:
    """Paths inside the machine that a restore of this open file will look for."""
    fields = parse(entry)
    names = _inner(fields, _REGULAR, _NAME) + _inner(fields, _UNIX, _BOUND)
    for told in _inner(fields, _INOTIFY, _WATCHES):
        names += _inner(parse(told), _HANDLE, _PATH)
    for name in names:
        if name[:1] != b"\0":  # a socket that is in no directory
            yield "/" + os.fsdecode(name).strip("\0").lstrip("/")


def _inner(fields: dict[int, list[int | bytes]], outer: int, inner: int) -> list[bytes]:
    """The bytes at a field of the messages at a field."""
    messages = [parse(one) for one in fields.get(outer, ()) if isinstance(one, bytes)]
    found = (one for message in messages for one in message.get(inner, ()))
    return [one for one in found if isinstance(one, bytes)]

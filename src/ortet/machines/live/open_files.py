"""Captures files that are not in the image, but that running processes hold.

Examples are ignored files, large files and caches that a process has open, mapped, watched, or as
its working directory. CRIU cannot restore the processes without them, so they are stored with the
dump.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from ortet.errors import Conflict
from ortet.history.records import Image, Layer, TreeEntry
from ortet.history.tree.tree import Trees
from ortet.machines.base import Loss
from ortet.machines.capture.entry import capture_entry, clamped_mtime, put_xattrs
from ortet.machines.dirfd import open_directory
from ortet.machines.live.criu.protobuf import image_entries, parse_message
from ortet.machines.overlay.mount_plan import HostOverlay, is_within
from ortet.machines.restore.write_entry import EntryWriter
from ortet.machines.restore.write_tree import TreeItem, write_tree
from ortet.objects.base import ObjectStore

WORKSPACE_MOUNT = b""
"""`Layer.mount` of the layer with workspace files, independent of where the workspace is."""

FILES_IMAGE = "files.img"
"""The CRIU image that lists open files."""

_MAX_FILE_BYTES = 256 << 20  # larger files need an explicit decision of the user
_REGULAR, _INOTIFY, _UNIX = 3, 13, 16  # fields of CRIU's FileEntry
_NAME, _BOUND = 6, 11  # of a regular file; of a unix socket
_WATCHES, _HANDLE, _PATH = 5, 7, 4  # of an inotify; of a watch; of its handle


class OpenFilesCapture:
    """Captures such files of one machine. `workspace_path` is the path inside the machine."""

    def __init__(
        self,
        objects: ObjectStore,
        trees: Trees,
        *,
        workspace_path: str,
        host_overlays: Sequence[HostOverlay],
    ) -> None:
        self._objects = objects
        self._trees = trees
        self._machine_root = Path("/")
        self._workspace_path = workspace_path
        self._host_overlays = [
            (cover.at.rstrip("/") + "/", f"{cover.upper}/", os.fsencode(cover.at))
            for cover in sorted(host_overlays, key=lambda cover: len(cover.at), reverse=True)
        ]
        self._paths_by_entry: dict[
            bytes, list[str]
        ] = {}  # entries of the last dump, with the paths parsed from them

    def capture_layers(
        self, image: Image, temp_layers: Sequence[Layer], *, images: Path, machine_root: Path
    ) -> list[Layer]:
        """Return `temp_layers`, extended by the files that dumped processes hold and `image` lacks.

        Called while the processes are stopped.

        Args:
            images: the directory of the dump.
            machine_root: root directory of the machine, as this process sees it.

        Raises:
            Conflict: "cannot_freeze", if a file is too large to store without being asked for.
        """
        self._machine_root = machine_root
        layers = {layer.mount: layer for layer in temp_layers}
        system = () if image.system is None else image.system.layers
        known = {layer.mount: layer.root for layer in system} | {WORKSPACE_MOUNT: image.root}
        new_files: dict[bytes, dict[bytes, TreeEntry]] = {}
        files = image_entries(images / FILES_IMAGE)
        self._paths_by_entry = {
            one: self._paths_by_entry.get(one) or list(paths_in_entry(one)) for one in files
        }
        for name in sorted({name for names in self._paths_by_entry.values() for name in names}):
            mount = self._mount_of(name)
            if mount is not None:
                mount_point = (
                    self._workspace_path if mount == WORKSPACE_MOUNT else os.fsdecode(mount)
                )
                path = os.fsencode(os.path.relpath(name, mount_point))
                has = [known[mount]] if mount in known else []
                has += [layers[mount].root] if mount in layers else []
                self._add_path(path, mount_point, has, new_files.setdefault(mount, {}))
        for mount, some in new_files.items():
            if some:
                layers[mount] = self._merge_layer(mount, layers.get(mount), some)
        return list(layers.values())

    def _mount_of(self, name: str) -> bytes | None:
        """Return the mount that a file is stored for; None if it exists anyway at a restore."""
        if is_within(name, (self._workspace_path,)):
            return None if name == self._workspace_path else WORKSPACE_MOUNT
        for mount_point, upper, mount in self._host_overlays:
            if name.startswith(mount_point):
                try:
                    mode = os.lstat(upper + name[len(mount_point) :]).st_mode
                except OSError:  # a file of the host
                    return None
                made_anew = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
                shows_through = stat.S_ISDIR(mode) and os.path.isdir(name)
                return None if made_anew or shows_through else mount
        return None

    def _add_path(
        self,
        path: bytes,
        mount_point: str,
        known_roots: Sequence[TreeEntry],
        entries_by_path: dict[bytes, TreeEntry],
    ) -> None:
        """Add a path, and the directories that lead to it."""
        where = Path(f"{self._machine_root}{mount_point}") / os.fsdecode(path)
        if any(self._trees.resolve(root, path) for root in known_roots) or not os.path.lexists(
            where
        ):
            return
        parts = path.split(b"/")
        for depth in range(1, len(parts)):
            above = b"/".join(parts[:depth])
            if above not in entries_by_path:
                entries_by_path[above] = self._directory_entry(
                    Path(f"{self._machine_root}{mount_point}/{os.fsdecode(above)}")
                )
        st = where.lstat()
        if stat.S_ISDIR(st.st_mode):
            entries_by_path[path] = self._directory_entry(where)
            return
        if st.st_size > _MAX_FILE_BYTES:
            raise Conflict(
                "cannot_freeze",
                f"a process has {where.relative_to(self._machine_root)} open, {st.st_size} bytes "
                "that "
                "commits leave out: keep such a file on the host, take it out of .ortetignore, or "
                "stop the process",
            )
        losses: list[Loss] = []
        with open_directory(where.parent) as fd:
            entry = capture_entry(self._objects, fd, parts[-1], st, path=path, losses=losses)
        if entry is not None:
            entries_by_path[path] = entry

    def _directory_entry(self, path: Path) -> TreeEntry:
        """Return the entry of a directory, without its content."""
        st = path.lstat()
        xattrs = put_xattrs(self._objects, os.fsencode(path))
        name = os.fsencode(path.name)
        return TreeEntry(name, st.st_mode, clamped_mtime(st), st.st_uid, st.st_gid, xattrs=xattrs)

    def _merge_layer(
        self, mount: bytes, layer: Layer | None, entries_by_path: dict[bytes, TreeEntry]
    ) -> Layer:
        if layer is not None:
            new = {
                p: e
                for p, e in entries_by_path.items()
                if self._trees.resolve(layer.root, p) is None
            }
            return replace(layer, root=self._trees.patch_paths(layer.root, new))
        mount_point = self._workspace_path if mount == WORKSPACE_MOUNT else os.fsdecode(mount)
        empty = self._trees.empty()
        top = self._directory_entry(Path(f"{self._machine_root}{mount_point}"))
        root = replace(top, name=b"", data=empty.oid, cid=empty.cid)
        return Layer(mount, self._trees.patch_paths(root, entries_by_path))


def restore_open_files(
    objects: ObjectStore, trees: Trees, upper: Path, layers: Sequence[Layer]
) -> list[Loss]:
    """Write captured workspace files into the upper directory, before anything runs on it."""
    writer = EntryWriter(objects)
    for layer in layers:
        if layer.mount == WORKSPACE_MOUNT:
            items = [
                TreeItem(path, entry, path)
                for path, entry in trees.walk(layer.root)
                if not os.path.lexists(os.path.join(os.fsencode(upper), path))
            ]
            with open_directory(upper) as fd:
                write_tree(objects, fd, items, writer=writer)
    return writer.losses


def paths_in_entry(entry: bytes) -> Iterator[str]:
    """Return the paths inside the machine that a restore of this open file needs."""
    fields = parse_message(entry)
    names = _nested_bytes(fields, _REGULAR, _NAME) + _nested_bytes(fields, _UNIX, _BOUND)
    for watch in _nested_bytes(fields, _INOTIFY, _WATCHES):
        names += _nested_bytes(parse_message(watch), _HANDLE, _PATH)
    for name in names:
        if name[:1] != b"\0":  # an abstract socket has no path
            yield "/" + os.fsdecode(name).strip("\0").lstrip("/")


def _nested_bytes(fields: dict[int, list[int | bytes]], outer: int, inner: int) -> list[bytes]:
    """Return the bytes of field `inner` in the messages of field `outer`."""
    messages = [parse_message(one) for one in fields.get(outer, ()) if isinstance(one, bytes)]
    values = (one for message in messages for one in message.get(inner, ()))
    return [one for one in values if isinstance(one, bytes)]

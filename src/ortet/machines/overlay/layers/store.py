"""Cache of shared read-only layers: whole workspaces, and differences stacked on them.

    bases/ID/        a layer: a whole workspace, or an overlay layer on top of others
    bases/ID.layer   the record of a layer and those below it; without it, ID is a leftover

All layers can be built again from the store. A layer from before the last boot of the host may have
lost data that was not written to disk. So it is checked once before it is used.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from ortet._util.codec import StoredRecord, decode, encode
from ortet._util.failpoints import failpoint
from ortet.errors import Corrupt, NotFound, OrtetError
from ortet.history.records import Image, TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Loss
from ortet.machines.dirfd import DirFdCache, join_path, open_directory, remove_tree
from ortet.machines.overlay.upper.scanner import UpperScanner
from ortet.machines.restore.checkout import checkout_image, hardlink_groups
from ortet.machines.restore.compare_images import ImageFiles
from ortet.machines.restore.write_entry import EntryWriter, OpenTarget
from ortet.machines.restore.write_tree import TreeItem, write_tree
from ortet.machines.standalone.syscalls import is_privileged
from ortet.objects.base import ObjectStore

# The difference of two images as an overlay layer: changed files, and whiteouts.


def whiteout_entry(name: bytes) -> TreeEntry:
    """Return the entry that overlayfs takes for a removed name."""
    return TreeEntry(name, stat.S_IFCHR, 0, os.geteuid(), os.getegid())


def count_changes(trees: Trees, below: TreeEntry, above: TreeEntry, *, limit: int) -> int:
    """Count the names of a layer between two trees. Counting stops above `limit`."""
    count = 0
    stack = [(below, above)]
    while stack and count <= limit:
        old, new = stack.pop()
        for was, now in trees.difference(Oid(old.data), Oid(new.data)):
            count += 1
            if was is not None and now is not None and was.is_dir and now.is_dir:
                stack.append((was, now))
            elif now is not None and now.is_dir:
                for _ in trees.walk(now):
                    count += 1
                    if count > limit:
                        break
    return count


def layer_items(
    trees: Trees, below: ImageFiles, above: ImageFiles
) -> tuple[list[TreeItem], list[list[bytes]]]:
    """Return the items to write, parents first, and their hardlink groups."""
    items: dict[bytes, TreeEntry] = {b"": above.root}
    stack = [(b"", below.root, above.root)]
    while stack:
        path, old, new = stack.pop()
        for was, now in trees.difference(Oid(old.data), Oid(new.data)):
            if now is None:
                assert was is not None
                items[join_path(path, was.name)] = whiteout_entry(was.name)
                continue
            item_path = join_path(path, now.name)
            items[item_path] = now
            if now.is_dir and was is not None and was.is_dir:
                stack.append((item_path, was, now))
            elif now.is_dir:
                items.update(trees.walk(now, item_path))
    groups = _add_relinked(trees, below, above, items)
    return [TreeItem(path, items[path], path) for path in sorted(items)], groups


def _add_relinked(
    trees: Trees, below: ImageFiles, above: ImageFiles, entries: dict[bytes, TreeEntry]
) -> list[list[bytes]]:
    """Add files whose hardlink group changes: a group is in one layer completely or not at all."""
    before = {tuple(group) for group in below.groups}
    after = {tuple(group) for group in above.groups}
    for group in before - after:
        _add_files(trees, above.root, group, entries)
    groups = []
    for names in above.groups:
        if tuple(names) not in before or any(path in entries for path in names):
            _add_files(trees, above.root, names, entries)
            groups.append(names)
    return groups


def _add_files(
    trees: Trees, root: TreeEntry, paths: Iterable[bytes], entries: dict[bytes, TreeEntry]
) -> None:
    """Add the files that exist at these paths, with the directories above them."""
    for path in paths:
        entry = trees.resolve(root, path)
        if entry is None or path in entries:
            continue
        entries[path] = entry
        above = path.rpartition(b"/")[0]
        while above not in entries:
            parent = trees.resolve(root, above)
            assert parent is not None
            entries[above] = parent
            above = above.rpartition(b"/")[0]


def hardlinked_items(trees: Trees, side: ImageFiles) -> tuple[list[TreeItem], list[list[bytes]]]:
    """Return the hardlinked files of an image, for a new upper directory.

    Overlayfs copies up only one name of a file, and the other names keep the old content. Files
    that are in the upper directory with all their names stay one file.
    """
    items: dict[bytes, TreeEntry] = {b"": side.root}
    for group in side.groups:
        _add_files(trees, side.root, group, items)
    return [TreeItem(path, items[path], path) for path in sorted(items)], list(side.groups)


def write_layer(
    objects: ObjectStore, place: Path, items: Sequence[TreeItem], groups: Sequence[Sequence[bytes]]
) -> list[Loss]:
    """Write a layer into an empty directory, and return the losses."""
    writer = EntryWriter(objects)
    with open_directory(place) as fd:
        if len(items) == 1:
            writer.apply_metadata(OpenTarget(fd), items[0].entry, path=b"")
        else:
            write_tree(objects, fd, items, groups, writer=writer)
    return list(dict.fromkeys(writer.losses))


# Checks that a layer on disk is still complete, once after each boot of the host.


class LowerLayers(Protocol):
    """The layers below a layer."""

    @property
    def root(self) -> TreeEntry: ...


def is_layer_intact(
    objects: ObjectStore, trees: Trees, place: Path, root: TreeEntry, below: LowerLayers | None
) -> bool:
    """Return True if a layer is as it was built.

    A crash of the host loses the ends of files, which sizes and times show. A layer on top of
    others is scanned completely.
    """
    try:
        if below is None:
            return _matches_tree(trees, place, root)
        upper = UpperScanner(objects, trees, place, below=below.root, is_root=is_privileged())
        try:
            return upper.scan() == root
        finally:
            upper.close()
    except (OSError, OrtetError):
        return False


def _matches_tree(trees: Trees, place: Path, root: TreeEntry) -> bool:
    with open_directory(place) as top, DirFdCache(top) as dirs:
        for path, entry in trees.walk(root):
            parent_fd, name = dirs.open_parent(path)
            st = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
            if stat.S_IFMT(st.st_mode) != stat.S_IFMT(entry.mode):
                return False
            if entry.is_file and (st.st_size, st.st_mtime_ns) != (entry.size, entry.mtime):
                return False
    return True


MAX_STACK_DEPTH = 8
"""The most layers in a stack. Each layer makes lookups slower."""

MAX_DELTA_NAMES = 4000
"""The most names in a difference. Above it, the workspace is written as a whole."""

IGNORED_LAYER_PREFIX = "ignored-"
"""Prefix of layers with ignored files only. They do not change the image of a stack."""

_MAX_COMPARED_STACKS = 6  # stacks to compare if there is no hint
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_LOCK = "lock"
_BUILD = "build.lock"
AREA = "area"


class LayerStack(StoredRecord, frozen=True):
    """Layers, topmost first, and the workspace that they form together."""

    layers: list[str]
    root: TreeEntry
    links: bytes = b""

    @property
    def image(self) -> Image:
        return Image(root=self.root, links=self.links)


class _LayerRecord(StoredRecord, frozen=True):
    stack: LayerStack
    boot: str  # boot id of the host when it was built or last checked
    shared: bool = True  # False: it has ignored files, and other machines do not find it


class LayerStore:
    """The layers of one store. Several processes may use them at once."""

    def __init__(self, objects: ObjectStore, trees: Trees, root: Path) -> None:
        self.root = root
        self.area = root / AREA
        self.boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
        self._objects = objects
        self._trees = trees
        self._stacks: dict[bytes, LayerStack] = {}  # by key of their image
        self._root_mtime_ns = 0  # mtime of the directory when it was last read
        root.mkdir(parents=True, exist_ok=True)

    def ensure_stack(
        self, image: Image, hint: LayerStack | None = None
    ) -> tuple[LayerStack, list[Loss]]:
        """Return layers for the workspace of an image, and build them if there are none.

        `hint` is a stack that is probably similar. Call this within `prevent_prune`, and stay in it
        until the machine's record names the layers.
        """
        stack = self._find(image)
        if stack is not None:
            return stack, []
        with self._locked(_BUILD, fcntl.LOCK_EX):
            stack = self._find(image)
            if stack is not None:
                return stack, []
            below = self._nearest(image, hint)
            return self._base(image) if below is None else self._delta(image, below)

    def image_files(self, image: Image) -> ImageFiles:
        return ImageFiles(image.root, hardlink_groups(self._objects, image))

    def adopt(
        self, upper: Path, name: str, *, below: LayerStack, image: Image, shared: bool
    ) -> LayerStack:
        """Turn a machine's upper directory, which is no longer written to, into a layer.

        If `shared` is False the directory also holds ignored files, so other machines do not find
        it.
        """
        upper.rename(self.root / name)
        failpoint("bases.adopted")
        stack = LayerStack([name, *below.layers], image.root, image.links)
        self._record(_LayerRecord(stack, self.boot, shared))
        return stack

    def undo_adopt(self, name: str, upper: Path) -> None:
        """Undo `adopt`, also if it was interrupted."""
        (self.root / f"{name}.layer").unlink(missing_ok=True)
        if not upper.exists() and (self.root / name).exists():
            (self.root / name).rename(upper)

    def ensure_layer(
        self, name: str, root: TreeEntry, fill: Callable[[Path], object], *, shared: bool = True
    ) -> Path:
        """Return a layer outside of any workspace; `fill` builds it if it is missing.

        `shared` is as in `adopt`.
        """
        if self.load_stack(name) is None:
            with self._locked(_BUILD, fcntl.LOCK_EX):
                if self.load_stack(name) is None:
                    fill(self._make_build_dir(name))
                    self._finish(LayerStack([name], root), shared)
        return self.root / name

    def load_stack(self, name: str) -> LayerStack | None:
        """Return the stack with this layer on top, or None if the layer is missing or damaged."""
        layer = self._load(name)
        return None if layer is None else layer.stack

    def private_layers(self, stack: LayerStack) -> list[Path]:
        """Return the layers of a stack with ignored files, topmost first."""
        layers = [(name, self._load(name)) for name in stack.layers]
        return [self.root / name for name, layer in layers if layer and not layer.shared]

    def is_complete(self, stack: LayerStack) -> bool:
        """Return True if all layers of the stack exist and are intact."""
        return all(self.load_stack(name) is not None for name in reversed(stack.layers))

    def prune(self, in_use: Callable[[], Collection[str]]) -> int:
        """Remove all layers except those that `in_use` returns.

        `in_use` is called while no machine can be opened.
        """
        removed = 0
        with self._locked(_LOCK, fcntl.LOCK_EX), open_directory(self.root) as root_fd:
            needed = {_LOCK, _BUILD, AREA, *in_use()}
            for name in os.listdir(self.root):
                if name.removesuffix(".layer") not in needed:
                    removed += not name.endswith(".layer")
                    remove_tree(root_fd, os.fsencode(name))
        self._root_mtime_ns = 0
        return removed

    @contextmanager
    def prevent_prune(self) -> Iterator[None]:
        """Prevent `prune` while layers are chosen but not yet named by a machine's record."""
        with self._locked(_LOCK, fcntl.LOCK_SH):
            yield

    # Find.

    def _find(self, image: Image) -> LayerStack | None:
        moved = self.root.stat().st_mtime_ns
        if moved != self._root_mtime_ns:
            self._read()
            self._root_mtime_ns = moved
        stack = self._stacks.get(self._key(image))
        return stack if stack is not None and self.is_complete(stack) else None

    def _read(self) -> None:
        names = [name for name in os.listdir(self.root) if name.endswith(".layer")]
        layers = [self._load(name.removesuffix(".layer")) for name in names]
        stacks = [layer.stack for layer in layers if layer is not None and layer.shared]
        self._stacks = {self._key(stack.image): stack for stack in stacks}

    def _load(self, name: str) -> _LayerRecord | None:
        try:
            layer = decode(_LayerRecord, (self.root / f"{name}.layer").read_bytes())
        except (FileNotFoundError, Corrupt):
            return None
        if layer.boot != self.boot:
            stack, place = layer.stack, self.root / name
            under = next(
                (n for n in stack.layers[1:] if not n.startswith(IGNORED_LAYER_PREFIX)), None
            )
            below = None if under is None else self.load_stack(under)
            if not is_layer_intact(self._objects, self._trees, place, stack.root, below):
                return None
            layer = replace(layer, boot=self.boot)
            self._record(layer)
        return layer

    def _nearest(self, image: Image, hint: LayerStack | None) -> LayerStack | None:
        """Return the most similar stack, or None if all differ too much."""
        hint = None if hint is None else self._shared_part(hint)
        guesses = [stack for stack in (hint, *self._stacks.values()) if stack is not None]
        best, least = None, MAX_DELTA_NAMES
        for guess in guesses[: 1 if hint is not None else _MAX_COMPARED_STACKS]:
            flat = (
                guess if len(guess.layers) < MAX_STACK_DEPTH else self.load_stack(guess.layers[-1])
            )
            if flat is not None and self.is_complete(flat):
                far = self._count_changes(flat, image, least)
                if far < least:
                    best, least = flat, far
        return best

    def _count_changes(self, below: LayerStack, image: Image, limit: int) -> int:
        """Return the number of changes, or the maximum if the stack's image is not in the store.

        That image is missing if a kernel was forked there without a commit, or after a sweep.
        """
        try:
            self.image_files(below.image)
            return count_changes(self._trees, below.root, image.root, limit=limit)
        except NotFound:
            return MAX_DELTA_NAMES

    def _shared_part(self, stack: LayerStack) -> LayerStack | None:
        """Return the lower part of a stack that has no ignored files, so that others may use it."""
        layers = [self._load(name) for name in stack.layers]
        own = [at for at, layer in enumerate(layers) if layer is None or not layer.shared]
        if not own:
            return stack
        top = layers[own[-1] + 1] if own[-1] + 1 < len(layers) else None
        return None if top is None else top.stack

    def _key(self, image: Image) -> bytes:
        return self._objects.hasher.oid(encode([image.root, image.links]))

    # Build.

    def _base(self, image: Image) -> tuple[LayerStack, list[Loss]]:
        name = self._key(image).hex()
        place = self._make_build_dir(name)
        report = checkout_image(self._objects, self._trees, image, place)
        return self._finish(LayerStack([name], image.root, image.links)), report.losses

    def _delta(self, image: Image, below: LayerStack) -> tuple[LayerStack, list[Loss]]:
        name = f"{self._key(image).hex()[:40]}-on-{below.layers[0][:40]}"
        items, groups = layer_items(
            self._trees, self.image_files(below.image), self.image_files(image)
        )
        losses = write_layer(self._objects, self._make_build_dir(name), items, groups)
        stack = LayerStack([name, *below.layers], image.root, image.links)
        return self._finish(stack), losses

    def _make_build_dir(self, name: str) -> Path:
        """Create an empty directory to build a layer in, and remove leftovers."""
        place = self.root / f"{name}.new"
        with open_directory(self.root) as root_fd:
            for leftover in (f"{name}.layer", name, place.name):
                remove_tree(root_fd, leftover.encode())
        place.mkdir()
        return place

    def _finish(self, stack: LayerStack, shared: bool = True) -> LayerStack:
        name = stack.layers[0]
        (self.root / f"{name}.new").rename(self.root / name)
        failpoint("bases.written")
        self._record(_LayerRecord(stack, self.boot, shared))
        return stack

    def _record(self, layer: _LayerRecord) -> None:
        name = layer.stack.layers[0]
        fresh = self.root / f"{name}.layer.new"
        fresh.write_bytes(encode(layer))
        fresh.rename(self.root / f"{name}.layer")
        if layer.shared:
            self._stacks[self._key(layer.stack.image)] = layer.stack

    @contextmanager
    def _locked(self, name: str, how: int) -> Iterator[None]:
        fd = os.open(self.root / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, how)
            yield
        finally:
            os.close(fd)

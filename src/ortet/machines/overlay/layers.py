"""Shared read-only layers in the store's cache: whole workspaces, and differences stacked on them.

    bases/ID/        a layer: a workspace written whole, or an overlay layer to lie on others
    bases/ID.layer   what it and those below it add up to; without this file ID is a leftover

All of it can be made again from the store. A layer from before the last start of the host may have
lost what was not written to disk yet: it is compared once before it is used.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from ortet._util.codec import Record, decode, encode
from ortet._util.failpoints import reach
from ortet.errors import Corrupt, NotFound
from ortet.history.records import Entry, Image
from ortet.history.tree.tree import Trees
from ortet.machines.base import Loss
from ortet.machines.dirfd import directory, remove
from ortet.machines.overlay.delta import difference, distance, write
from ortet.machines.overlay.soundness import is_sound
from ortet.machines.restore.materialise import links_of, materialise
from ortet.machines.restore.plan import Side
from ortet.objects.base import Objects

DEEPEST = 8
"""Layers in a stack: lookups get slower with each."""

FAR = 4000
"""Names in a difference: beyond it a workspace is written whole."""

ASIDE = "ignored-"
"""What names of layers begin with that add nothing to what others add up to."""

_NEAR = 6  # stacks compared when none is known to be near
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_LOCK = "lock"
_BUILD = "build.lock"
AREA = "area"


class Stack(Record, frozen=True):
    """Layers, topmost first, and the workspace they add up to."""

    layers: list[str]
    root: Entry
    links: bytes = b""

    @property
    def image(self) -> Image:
        return Image(root=self.root, links=self.links)


class _Layer(Record, frozen=True):
    stack: Stack
    boot: str  # of the host when it was made, or last compared
    shared: bool = True  # False: it holds what no image does, and is for those who are told of it


class Bases:
    """The layers of one store. Several processes may use them at once."""

    def __init__(self, objects: Objects, trees: Trees, root: Path) -> None:
        self.root = root
        self.area = root / AREA
        self.boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
        self._objects = objects
        self._trees = trees
        self._stacks: dict[bytes, Stack] = {}  # by what they add up to
        self._seen = 0  # mtime of the directory when it was last read
        root.mkdir(parents=True, exist_ok=True)

    def stack(self, image: Image, near: Stack | None = None) -> tuple[Stack, list[Loss]]:
        """Layers for the workspace of an image, made where there are none; `near` is a guess.

        Call it within `using`, and stay there until the machine's record names the layers.
        """
        found = self._find(image)
        if found is not None:
            return found, []
        with self._locked(_BUILD, fcntl.LOCK_EX):
            found = self._find(image)
            if found is not None:
                return found, []
            below = self._nearest(image, near)
            return self._base(image) if below is None else self._delta(image, below)

    def side(self, image: Image) -> Side:
        return Side(image.root, links_of(self._objects, image))

    def adopt(self, upper: Path, name: str, *, below: Stack, image: Image, shared: bool) -> Stack:
        """Make a machine's upper directory, which nobody writes to any more, a layer.

        Not `shared`: it also holds what is no state, so it is not for other machines to find.
        """
        upper.rename(self.root / name)
        reach("bases.adopted")
        stack = Stack([name, *below.layers], image.root, image.links)
        self._record(_Layer(stack, self.boot, shared))
        return stack

    def give_back(self, name: str, upper: Path) -> None:
        """Undo `adopt`, as far as it went."""
        (self.root / f"{name}.layer").unlink(missing_ok=True)
        if not upper.exists() and (self.root / name).exists():
            (self.root / name).rename(upper)

    def make(
        self, name: str, root: Entry, fill: Callable[[Path], object], *, shared: bool = True
    ) -> Path:
        """A layer outside of any workspace, filled unless it is there; see `adopt`."""
        if self.known(name) is None:
            with self._locked(_BUILD, fcntl.LOCK_EX):
                if self.known(name) is None:
                    fill(self._fresh(name))
                    self._finish(Stack([name], root), shared)
        return self.root / name

    def known(self, name: str) -> Stack | None:
        """The stack whose top this layer is; None when the layer is not as it was made."""
        layer = self._load(name)
        return None if layer is None else layer.stack

    def own(self, stack: Stack) -> list[Path]:
        """Those of its layers that hold what is no state, topmost first."""
        layers = [(name, self._load(name)) for name in stack.layers]
        return [self.root / name for name, layer in layers if layer and not layer.shared]

    def whole(self, stack: Stack) -> bool:
        """Are all its layers there, as they were made?"""
        return all(self.known(name) is not None for name in reversed(stack.layers))

    def prune(self, in_use: Callable[[], Collection[str]]) -> int:
        """Remove all layers but those `in_use` names, asked when no machine can be opened."""
        removed = 0
        with self._locked(_LOCK, fcntl.LOCK_EX), directory(self.root) as at:
            needed = {_LOCK, _BUILD, AREA, *in_use()}
            for name in os.listdir(self.root):
                if name.removesuffix(".layer") not in needed:
                    removed += not name.endswith(".layer")
                    remove(at, os.fsencode(name))
        self._seen = 0
        return removed

    @contextmanager
    def using(self) -> Iterator[None]:
        """While layers are chosen and not yet named by a machine's record: no prune."""
        with self._locked(_LOCK, fcntl.LOCK_SH):
            yield

    # finding

    def _find(self, image: Image) -> Stack | None:
        moved = self.root.stat().st_mtime_ns
        if moved != self._seen:
            self._read()
            self._seen = moved
        stack = self._stacks.get(self._key(image))
        return stack if stack is not None and self.whole(stack) else None

    def _read(self) -> None:
        names = [name for name in os.listdir(self.root) if name.endswith(".layer")]
        layers = [self._load(name.removesuffix(".layer")) for name in names]
        found = [layer.stack for layer in layers if layer is not None and layer.shared]
        self._stacks = {self._key(stack.image): stack for stack in found}

    def _load(self, name: str) -> _Layer | None:
        try:
            layer = decode(_Layer, (self.root / f"{name}.layer").read_bytes())
        except (FileNotFoundError, Corrupt):
            return None
        if layer.boot != self.boot:
            stack, place = layer.stack, self.root / name
            under = next((n for n in stack.layers[1:] if not n.startswith(ASIDE)), None)
            below = None if under is None else self.known(under)
            if not is_sound(self._objects, self._trees, place, stack.root, below):
                return None
            layer = replace(layer, boot=self.boot)
            self._record(layer)
        return layer

    def _nearest(self, image: Image, near: Stack | None) -> Stack | None:
        """The stack from which it is least far to this image, if it is not too far."""
        near = None if near is None else self._found_by_all(near)
        guesses = [stack for stack in (near, *self._stacks.values()) if stack is not None]
        best, least = None, FAR
        for guess in guesses[: 1 if near is not None else _NEAR]:
            flat = guess if len(guess.layers) < DEEPEST else self.known(guess.layers[-1])
            if flat is not None and self.whole(flat):
                far = self._distance(flat, image, least)
                if far < least:
                    best, least = flat, far
        return best

    def _distance(self, below: Stack, image: Image, most: int) -> int:
        """As far as can be when what is below is not in the store: a kernel was forked there and
        nobody has committed it, or it was swept."""
        try:
            self.side(below.image)
            return distance(self._trees, below.root, image.root, most=most)
        except NotFound:
            return FAR

    def _found_by_all(self, stack: Stack) -> Stack | None:
        """The part of it that has no layer with what is no state: others will rest on it too."""
        layers = [self._load(name) for name in stack.layers]
        own = [at for at, layer in enumerate(layers) if layer is None or not layer.shared]
        if not own:
            return stack
        top = layers[own[-1] + 1] if own[-1] + 1 < len(layers) else None
        return None if top is None else top.stack

    def _key(self, image: Image) -> bytes:
        return self._objects.hasher.oid(encode([image.root, image.links]))

    # making

    def _base(self, image: Image) -> tuple[Stack, list[Loss]]:
        name = self._key(image).hex()
        place = self._fresh(name)
        report = materialise(self._objects, self._trees, image, place)
        return self._finish(Stack([name], image.root, image.links)), report.losses

    def _delta(self, image: Image, below: Stack) -> tuple[Stack, list[Loss]]:
        name = f"{self._key(image).hex()[:40]}-on-{below.layers[0][:40]}"
        items, groups = difference(self._trees, self.side(below.image), self.side(image))
        losses = write(self._objects, self._fresh(name), items, groups)
        stack = Stack([name, *below.layers], image.root, image.links)
        return self._finish(stack), losses

    def _fresh(self, name: str) -> Path:
        """An empty directory to build in, without what anyone left there before."""
        place = self.root / f"{name}.new"
        with directory(self.root) as at:
            for leftover in (f"{name}.layer", name, place.name):
                remove(at, leftover.encode())
        place.mkdir()
        return place

    def _finish(self, stack: Stack, shared: bool = True) -> Stack:
        name = stack.layers[0]
        (self.root / f"{name}.new").rename(self.root / name)
        reach("bases.written")
        self._record(_Layer(stack, self.boot, shared))
        return stack

    def _record(self, layer: _Layer) -> None:
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

"""The home of a private machine: its layout, its upper directories, and its lock."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from msgspec.structs import replace

from ortet._util.codec import StoredRecord, decode, encode
from ortet.errors import Conflict, Corrupt
from ortet.history.records import System
from ortet.history.tree.tree import Trees
from ortet.machines.base import Loss
from ortet.machines.dirfd import open_directory, remove_tree
from ortet.machines.overlay.layers.store import (
    LayerStack,
    LayerStore,
    hardlinked_items,
    write_layer,
)
from ortet.machines.overlay.layers.system_diff import layer_directory_name
from ortet.objects.base import ObjectStore

MAX_CARRIED_FILES = 2000
MAX_CARRIED_BYTES = 64 << 20
"""Limits of the hardlinked files that are copied to every new upper directory.

See `delta.hardlinked_items`.
"""

_INNER = ("upper", "work")
_OUTER = ("host", "hostwork")
_KERNEL_LAYER = "branch"
_KERNEL_LAYER_DIRS = (_KERNEL_LAYER, f"{_KERNEL_LAYER}work", f"{_KERNEL_LAYER}stack")
_RECORD = "machine"
_LOCK = "lock"


class LayerLayout(StoredRecord, frozen=True):
    """The layers and upper directories of a machine.

    The record is replaced as a whole, so a crash leaves the old or the new one.
    """

    upper: int  # number of the upper directory in use
    stack: LayerStack  # the layers below it
    system: System | None = None  # the difference between the host and the machine's system
    ignoring: bool = False  # the upper directory or a layer may hold ignored files
    outer: int = 0  # number of the upper directories over host directories


class MachineHome:
    """The files of a machine. The lock is held from `lock` until `close`."""

    def __init__(self, objects: ObjectStore, trees: Trees, path: Path) -> None:
        self.path = path
        self._objects = objects
        self._trees = trees
        self._lock = -1

    def lock(self) -> None:
        """Lock the home. Raises Conflict("machine_open") while another handle has it open."""
        fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Conflict(
                "machine_open",
                "this workspace's machine is open already, here or in another process: close it "
                "there first",
            ) from None
        self._lock = fd

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def read_layout(self) -> LayerLayout | None:
        """Return the layout, or None if the machine was never opened."""
        try:
            return decode(LayerLayout, (self.path / _RECORD).read_bytes())
        except FileNotFoundError:
            return None

    def write_layout(self, layout: LayerLayout) -> None:
        fresh = self.path / f"{_RECORD}.new"
        fresh.write_bytes(encode(layout))
        fresh.rename(self.path / _RECORD)

    def upper(self, number: int) -> Path:
        return self.path / f"upper-{number}"

    def make_work_dir(self, number: int) -> Path:
        return self.make_empty_dir(f"work-{number}")

    def make_empty_dir(self, name: str) -> Path:
        """Create an empty directory, or empty the existing one.

        The kernel refuses a mount whose work directory has content of an earlier mount.
        """
        place = self.path / name
        try:
            place.mkdir()
        except FileExistsError:
            self._remove(name)
            place.mkdir()
        return place

    def remove_dir(self, name: str) -> None:
        """Remove a directory of the home, if it exists."""
        with suppress(FileNotFoundError):
            self._remove(name)

    def make_upper(self, number: int, stack: LayerStack, layer_store: LayerStore) -> list[Loss]:
        """Create an upper directory for this stack, and return what could not be written."""
        return self._write_upper(self.upper(number).name, stack, layer_store)

    def _write_upper(self, name: str, stack: LayerStack, layer_store: LayerStore) -> list[Loss]:
        side = layer_store.image_files(stack.image)
        items, groups = hardlinked_items(self._trees, side)
        losses = []
        if (
            len(items) > MAX_CARRIED_FILES
            or sum(item.entry.size for item in items) > MAX_CARRIED_BYTES
        ):
            why = "there are too many hardlinks: a write through one name is not seen by the others"
            losses.append(Loss("", "hardlink", why))
            items, groups = items[:1], []
        place = self.make_empty_dir(name)
        return losses + write_layer(self._objects, place, items, groups)

    # Kernel layers: the files of forked kernels, as long as they run.

    def make_kernel_layer(
        self, number: int, stack: LayerStack, layer_store: LayerStore
    ) -> tuple[str, str]:
        """Create an upper and a work directory for a forked kernel, and return their names."""
        upper, work = self.kernel_upper_dir(number).name, f"{_KERNEL_LAYER}work-{number}"
        self._write_upper(upper, stack, layer_store)
        self.make_empty_dir(work)
        note = self.path / f"{_KERNEL_LAYER}stack-{stack.layers[0]}"
        if not note.exists():  # shared by all kernels on this stack; kept until the machine closes
            note.write_bytes(encode(stack))
        return upper, work

    def kernel_upper_dir(self, number: int) -> Path:
        return self.path / f"{_KERNEL_LAYER}-{number}"

    def adopt_kernel_layer(self, number: int, upper: int) -> None:
        """Make the upper directory of a kernel that of the machine."""
        self._remove(self.upper(upper).name)
        self.kernel_upper_dir(number).rename(self.upper(upper))

    def remove_kernel_layers(self, number: int | None = None) -> None:
        """Remove the directories of one kernel layer, or all that a killed process left."""
        for name in os.listdir(self.path):
            kind, _, which = name.partition("-")
            if kind in _KERNEL_LAYER_DIRS and (number is None or which == str(number)):
                with suppress(OSError):
                    self._remove(name)

    def layers_in_use(self) -> set[str]:
        """Return all layers that this machine and its kernels use."""
        layers: set[str] = set()
        layout = self.read_layout()
        if layout is not None:
            layers.update(layout.stack.layers)
            if layout.system is not None:
                layers.update(map(layer_directory_name, layout.system.layers))
            for path in self.path.glob(f"{_KERNEL_LAYER}stack-*"):
                with suppress(FileNotFoundError, Corrupt):
                    layers.update(decode(LayerStack, path.read_bytes()).layers)
        return layers

    def recover_layout(
        self, layout: LayerLayout, layer_store: LayerStore, machine: str
    ) -> LayerLayout:
        """Return the layout after a process was killed, also during a change of it."""
        name = layer_name(machine, layout.upper)
        if not self.upper(layout.upper).is_dir():
            stack = layer_store.load_stack(name)
            if stack is not None:  # it had become a layer, and forks may use it
                layout = replace(layout, upper=layout.upper + 1, stack=stack)
                self.make_upper(layout.upper, stack, layer_store)
                self.write_layout(layout)
            elif (layer_store.root / name).is_dir():
                (layer_store.root / name).rename(self.upper(layout.upper))
            else:
                raise Corrupt(
                    "machine_broken",
                    f"the files of machine {machine} are gone from {self.path}: drop the "
                    "workspace and make it again from its branch",
                )
        self.remove_unused_dirs(layout)
        self.remove_kernel_layers()
        return layout

    def host_upper_name(self, layout: LayerLayout, directory: str) -> str:
        """Return the name of the upper directory over a directory of the host."""
        return f"host-{layout.outer}-{quote(directory, safe='')}"

    def remove_unused_dirs(self, layout: LayerLayout) -> None:
        """Remove upper directories that are no longer, or not yet, in use."""
        for name in os.listdir(self.path):
            kind, number, *_ = *name.split("-", 2), ""
            used = layout.upper if kind in _INNER else layout.outer
            if kind in _INNER + _OUTER and number != str(used):
                with suppress(OSError):
                    self._remove(name)

    def _remove(self, name: str) -> None:
        with open_directory(self.path) as home_fd:
            remove_tree(home_fd, name.encode())


def layer_name(machine: str, number: int) -> str:
    """Return the name under which a machine's upper directory becomes a layer."""
    return f"{machine}-{number}"

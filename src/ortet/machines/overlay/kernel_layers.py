"""Layers for kernel forks: each fork gets an upper directory of its own over frozen files.

Overlay machines and live machines share this. What differs between them is in `LayerMounts`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from ortet._util.codec import encode
from ortet._util.failpoints import failpoint
from ortet.errors import Conflict
from ortet.history.records import Image
from ortet.ids import Oid
from ortet.machines.kernel_host import FilesSnapshot, ForkLayers, KernelLayer, ListKernelPids
from ortet.machines.overlay.files import OverlayFiles
from ortet.machines.overlay.image import OverlaySnapshotter
from ortet.machines.overlay.layers.home import LayerLayout
from ortet.machines.overlay.layers.store import MAX_STACK_DEPTH, LayerStack
from ortet.objects.base import Kind


class LayerOrigin(msgspec.Struct, frozen=True):
    """The layers below a fork's private layer.

    `basis` is the machine's image at the time of the first fork in this chain of forks.
    """

    basis: Oid
    stack: LayerStack
    ignoring: bool  # the layers may hold ignored files, which are in no image


class LayerMounts(Protocol):
    """The mounts of a machine, as far as kernel forks need them."""

    def freeze(self, list_kernel_pids: ListKernelPids, image: Image) -> LayerStack:
        """Return the machine's present files as layers to which nothing writes any more."""

    def mount(self, stack: LayerStack, upper: str, work: str) -> tuple[int, int]:
        """Mount a workspace of these layers in a new namespace.

        Returns open descriptors of its root directory and of the namespace.
        """

    def other_users(self, kernel_pids: Collection[int], layer: KernelLayer) -> list[str]:
        """List processes other than the kernels that use the files of a fork."""


class KernelLayers:
    """The private layers of all kernel forks of one machine."""

    def __init__(self, files: OverlayFiles, mounts: LayerMounts) -> None:
        self._files = files
        self._mounts = mounts
        self._home = files.home
        self._layer_store = files.context.layer_store
        self._last_number = 0
        self._origins: dict[int, LayerOrigin] = {}
        self._layers: dict[int, KernelLayer] = {}

    def close(self) -> None:
        for layer in list(self._layers.values()):
            self.drop(layer)

    def origin(self, layer: KernelLayer) -> LayerOrigin:
        """Return what is below a fork's layer."""
        return self._origins[layer.number]

    def capture(self, layer: KernelLayer) -> FilesSnapshot:
        """Snapshot the files of a fork."""
        context, origin = self._files.context, self._origins[layer.number]
        snapshotter = OverlaySnapshotter(
            context,
            self._files.spec,
            self._home.kernel_upper_dir(layer.number),
            layout=LayerLayout(0, origin.stack),
            host_overlays=[],
            view=Path(f"/proc/self/fd/{layer.root}{self._files.spec.path}"),
        )
        try:
            image = snapshotter.snapshot(None, quiet=False)
            if snapshotter.has_ignored_files and not origin.ignoring:
                self._origins[layer.number] = replace(origin, ignoring=True)
        finally:
            snapshotter.close()
        return context.objects.put(Kind.IMAGE, encode(image)), image

    @contextmanager
    def fork_layers(
        self,
        list_kernel_pids: ListKernelPids,
        snapshot: FilesSnapshot,
        layer: KernelLayer | None,
    ) -> Iterator[ForkLayers]:
        """Yield layers for forks, as `KernelHost.fork_layers` does."""
        files = self._files
        with self._layer_store.prevent_prune():
            if layer is None:
                before = files.layout.upper
                stack = self._mounts.freeze(list_kernel_pids, snapshot[1])
                origin = LayerOrigin(snapshot[0], stack, files.layout.ignoring)
                yield ForkLayers(partial(self._create, origin), files.layout.upper != before)
            else:
                origin, instead = self._freeze_fork(layer, list_kernel_pids, snapshot[1])
                yield ForkLayers(partial(self._create, origin), instead=instead)

    def drop(self, layer: KernelLayer) -> None:
        """Release a layer and delete its files. Do nothing if it is released already."""
        if self._origins.pop(layer.number, None) is not None:
            del self._layers[layer.number]
            os.close(layer.root)
            os.close(layer.namespace)
            self._home.remove_kernel_layers(layer.number)

    def _create(self, origin: LayerOrigin) -> KernelLayer:
        self._last_number += 1
        number = self._last_number
        upper, work = self._home.make_kernel_layer(number, origin.stack, self._layer_store)
        try:
            root, namespace = self._mounts.mount(origin.stack, upper, work)
        except BaseException:
            self._home.remove_kernel_layers(number)
            raise
        self._origins[number] = origin
        layer = self._layers[number] = KernelLayer(number, root, namespace)
        return layer

    def _freeze_fork(
        self, layer: KernelLayer, list_kernel_pids: ListKernelPids, image: Image
    ) -> tuple[LayerOrigin, KernelLayer | None]:
        """Return read-only layers with the files of a fork.

        If the fork's upper directory became a layer, the fork itself continues on a new layer above
        it, which is returned as well.
        """
        origin, bases = self._origins[layer.number], self._layer_store
        upper, stack = self._home.kernel_upper_dir(layer.number), origin.stack
        if stack.image == image and (not origin.ignoring or not os.listdir(upper)):
            return origin, None
        deep = len(stack.layers) >= MAX_STACK_DEPTH and not origin.ignoring
        users = [] if deep else self._mounts.other_users(list_kernel_pids(), layer)
        if users and origin.ignoring:
            raise files_in_use_error(users, "fork a fork of a kernel")
        if deep or users:
            return replace(origin, stack=bases.ensure_stack(image, stack)[0]), None
        name = self._unused_layer_name(layer.number)
        shared = not origin.ignoring
        stack = bases.adopt(upper, name, below=stack, image=image, shared=shared)
        try:
            failpoint("kernel.branchlayer")
            origin = replace(origin, stack=stack)
            return origin, self._create(origin)
        except BaseException:
            bases.undo_adopt(name, upper)
            raise

    def _unused_layer_name(self, number: int) -> str:
        """Return a layer name that no earlier process used.

        A search is needed because each process numbers its layers from 1.
        """
        again, machine = 0, self._files.spec.id
        while (self._layer_store.root / (name := f"{machine}-fork{number}.{again}")).exists():
            again += 1
        return name


def files_in_use_error(users: list[str], action: str) -> Conflict:
    """Return the error for an action that no process but the kernels may disturb."""
    return Conflict(
        "busy",
        f"cannot {action} while other processes work in the workspace: stop "
        f"{', '.join(users[:5])} first",
        processes=users,
    )

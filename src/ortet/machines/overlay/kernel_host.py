"""Kernels in an overlay machine: the supervisor starts them, and remounts layers under them.

Each kernel fork gets an upper directory of its own over frozen files (`KernelLayers`). Overlay
machines and live machines share this. What differs between them is in `LayerMounts`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from ortet._util.codec import encode
from ortet._util.failpoints import failpoint
from ortet.errors import Conflict
from ortet.history.records import Image
from ortet.ids import Oid
from ortet.machines.kernel_host import (
    FilesSnapshot,
    ForkLayers,
    KernelHost,
    KernelLayer,
    KernelProcess,
    ListKernelPids,
)
from ortet.machines.kernels.local_host import launch_interpreter
from ortet.machines.overlay.files import OverlayFiles
from ortet.machines.overlay.image import OverlaySnapshotter
from ortet.machines.overlay.layer_switcher import mount_refused_error
from ortet.machines.overlay.layers.home import LayerLayout, layer_name
from ortet.machines.overlay.layers.store import MAX_STACK_DEPTH, LayerStack
from ortet.machines.standalone.syscalls import CAP_SYS_CHROOT
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


class OverlayKernelHost(KernelHost):
    """The kernels of an overlay machine. `snapshot` captures the machine."""

    engine = "overlay"

    def __init__(self, files: OverlayFiles, snapshot: Callable[[], FilesSnapshot]) -> None:
        self.workspace_path = str(files.spec.path)
        self._files = files
        self._snapshot = snapshot
        self._mounts = OverlayLayerMounts(files)
        self._layers = KernelLayers(files, self._mounts)

    @property
    def host_path(self) -> Path:
        return self._files.path

    def close(self) -> None:
        """Release the layers of all forks."""
        self._layers.close()

    def start_interpreter(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str]
    ) -> KernelProcess:
        del name
        return launch_interpreter(self._launch, argv, env)

    def _launch(
        self, argv: Sequence[str], *, env: Mapping[str, str], fds: Sequence[int]
    ) -> tuple[int, int]:
        request = {"do": "run", "argv": list(argv), "env": dict(env), "cwd": self.workspace_path}
        reply, passed = self._files.process.ask({**request, "right": CAP_SYS_CHROOT}, fds)
        if "bad" in reply or "errno" in reply:
            raise OSError(reply.get("errno", 0), reply.get("error", reply.get("bad")))
        self._files.busy = True
        return reply["pid"], passed[0]

    def kill_kernel(self, pid: int, mark: str, exclude: Collection[int]) -> None:
        self._files.process.ask({"do": "end", "pid": pid, "mark": mark, "spare": list(exclude)})

    def wait_exit_code(self, pid: int) -> int | None:
        reply, _ = self._files.process.ask({"do": "wait", "pid": pid})
        code: int = reply["code"]
        return code

    # layers for forks

    def capture_files(self, layer: KernelLayer | None = None) -> FilesSnapshot:
        return self._snapshot() if layer is None else self._layers.capture(layer)

    def fork_layers(
        self,
        list_kernel_pids: ListKernelPids,
        snapshot: FilesSnapshot,
        layer: KernelLayer | None = None,
    ) -> AbstractContextManager[ForkLayers]:
        return self._layers.fork_layers(list_kernel_pids, snapshot, layer)

    def base_image(self, layer: KernelLayer) -> Oid:
        return self._layers.origin(layer).basis

    def adopt_layer(self, layer: KernelLayer, kernel_pids: Collection[int]) -> int:
        files = self._files
        self._mounts.check_no_other_users(kernel_pids, "keep a fork")
        with files.context.layer_store.prevent_prune():
            origin, old = self._layers.origin(layer), files.layout
            ignoring = old.ignoring or origin.ignoring
            new = replace(old, upper=old.upper + 1, stack=origin.stack, ignoring=ignoring)
            files.home.adopt_kernel_layer(layer.number, new.upper)
            failpoint("kernel.taken")
            self._mounts.change_layout(new)
        files.home.remove_unused_dirs(files.layout)
        return self._mounts.open_root()

    def drop_layer(self, layer: KernelLayer) -> None:
        self._layers.drop(layer)


class OverlayLayerMounts:
    """Mounts layers through the supervisor of an overlay machine, while its kernels run."""

    def __init__(self, files: OverlayFiles) -> None:
        self._files = files
        self._context = files.context

    def freeze(self, list_kernel_pids: ListKernelPids, image: Image) -> LayerStack:
        """Return the present files as layers to which nothing writes any more.

        If the upper directory adds nothing, these are the machine's own layers. Otherwise the upper
        directory becomes a layer, and the machine continues with a fresh one. If other processes
        could still write to the old upper directory, the difference is written from the store
        instead.
        """
        layout, layer_store = self._files.layout, self._context.layer_store
        same = layout.stack.image == replace(image, system=None)
        if same and (not layout.ignoring or not os.listdir(self._files.home.upper(layout.upper))):
            return layout.stack
        if len(layout.stack.layers) >= MAX_STACK_DEPTH and not layout.ignoring:
            return layer_store.ensure_stack(image, layout.stack)[0]
        if layout.ignoring:  # the layers hold ignored files, which are not in the store
            self.check_no_other_users(list_kernel_pids(), "fork a kernel")
        elif self._users(list_kernel_pids()):
            return layer_store.ensure_stack(image, layout.stack)[0]
        return self._start_new_upper(image)

    def mount(self, stack: LayerStack, upper: str, work: str) -> tuple[int, int]:
        options = self._context.mount_options(stack, upper, work)
        root, namespace = self._request_fds({"do": "branch", "options": options})
        return root, namespace

    def other_users(self, kernel_pids: Collection[int], layer: KernelLayer) -> list[str]:
        return self._users(kernel_pids, layer.root)

    def check_no_other_users(self, kernel_pids: Collection[int], action: str) -> None:
        """Raise Conflict("busy") if other processes use the machine's files."""
        if users := self._users(kernel_pids):
            raise files_in_use_error(users, action)

    def change_layout(self, layout: LayerLayout) -> None:
        """Switch the machine to other layers while kernels run.

        `KernelServer._do_follow` moves a kernel to the new layers.
        """
        self._files.home.make_work_dir(layout.upper)
        self._swap(self._context.workspace_mount_options(layout))
        failpoint("kernel.swapped")
        self._files.set_layout(layout)
        self._files.has_uncommitted = True

    def open_root(self) -> int:
        """Return an open descriptor of the machine's root directory."""
        return self._request_fds({"do": "root"})[0]

    def _start_new_upper(self, image: Image) -> LayerStack:
        old, bases, home = self._files.layout, self._context.layer_store, self._files.home
        flush = getattr(self._context.objects, "flush", None)
        # the next process that opens this machine reads the lower layers from the store
        if flush is not None:
            flush(sync=False)
        name, upper = layer_name(self._files.spec.id, old.upper), home.upper(old.upper)
        stack = bases.adopt(upper, name, below=old.stack, image=image, shared=not old.ignoring)
        try:
            failpoint("kernel.layer")
            new = replace(old, upper=old.upper + 1, stack=stack)
            home.make_upper(new.upper, stack, bases)
            self.change_layout(new)
        except BaseException:
            if self._files.layout is old:
                bases.undo_adopt(name, upper)
                home.make_work_dir(old.upper)
                self._swap(self._context.workspace_mount_options(old))
            raise
        return stack

    def _users(self, kernel_pids: Collection[int], root: int | None = None) -> list[str]:
        """List other processes that use the machine's files, or the files below `root`."""
        fds = [] if root is None else [root]
        reply, _ = self._files.process.ask({"do": "holders", "but": list(kernel_pids)}, fds)
        users: list[str] = reply["held"]
        return users

    def _swap(self, options: str) -> None:
        self._request_fds({"do": "swap", "options": options})

    def _request_fds(self, request: dict[str, Any]) -> list[int]:
        reply, fds = self._files.process.ask(request)
        if "error" in reply:
            raise mount_refused_error(reply["error"])
        return fds

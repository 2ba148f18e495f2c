"""Kernels in an overlay machine: layers for their forks, and adoption of a fork's files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ortet._util.codec import encode
from ortet._util.failpoints import failpoint
from ortet.errors import Conflict, Unavailable
from ortet.history.records import Image
from ortet.ids import Oid
from ortet.machines.kernels.host import (
    FilesSnapshot,
    ForkLayers,
    KernelHost,
    KernelLayer,
    KernelProcess,
    ListKernelPids,
    launch_interpreter,
)
from ortet.machines.overlay.home import LayerLayout, layer_name
from ortet.machines.overlay.image import OverlaySnapshotter
from ortet.machines.overlay.layers import MAX_STACK_DEPTH, LayerStack
from ortet.machines.overlay.machine import OverlayMachineBase
from ortet.machines.standalone.syscalls import CAP_SYS_CHROOT
from ortet.objects.base import Kind


class LayerOrigin(msgspec.Struct, frozen=True):
    """The layers below a fork's private layer.

    `basis` is the machine's image at the time of the first fork in this chain of forks.
    """

    basis: Oid
    stack: LayerStack
    ignoring: bool  # the layers may hold ignored files, which are in no image


class OverlayKernelHost(OverlayMachineBase, KernelHost):
    """An overlay machine as kernel host.

    A kernel fork gets a fresh upper layer over the machine's files.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._last_layer_number = 0
        self._origins: dict[int, LayerOrigin] = {}
        self._kernel_layers: dict[int, KernelLayer] = {}

    @property
    def workspace_path(self) -> str:  # type: ignore[override]
        return str(self._spec.path)

    @property
    def host_path(self) -> Path:  # type: ignore[override]
        return self.path

    def close(self) -> None:
        for branch in list(self._kernel_layers.values()):
            self.drop_layer(branch)
        super().close()

    def kernel_host(self) -> KernelHost:
        return self

    def start_interpreter(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str]
    ) -> KernelProcess:
        del name
        return launch_interpreter(self._launch, argv, env)

    def _launch(
        self, argv: Sequence[str], *, env: Mapping[str, str], fds: Sequence[int]
    ) -> tuple[int, int]:
        request = {"do": "run", "argv": list(argv), "env": dict(env), "cwd": self.workspace_path}
        reply, passed = self._supervisor.ask({**request, "right": CAP_SYS_CHROOT}, fds)
        if "bad" in reply or "errno" in reply:
            raise OSError(reply.get("errno", 0), reply.get("error", reply.get("bad")))
        self._busy = True
        return reply["pid"], passed[0]

    def kill_kernel(self, pid: int, mark: str, exclude: Collection[int]) -> None:
        self._supervisor.ask({"do": "end", "pid": pid, "mark": mark, "spare": list(exclude)})

    def wait_exit_code(self, pid: int) -> int | None:
        reply, _ = self._supervisor.ask({"do": "wait", "pid": pid})
        code: int = reply["code"]
        return code

    def capture_files(self, layer: KernelLayer | None = None) -> FilesSnapshot:
        if layer is None:
            return self._snapshot()
        origin = self._origins[layer.number]
        lens = OverlaySnapshotter(
            self._context,
            self._spec,
            self._home.kernel_upper_dir(layer.number),
            layout=LayerLayout(0, origin.stack),
            host_overlays=[],
            view=Path(f"/proc/self/fd/{layer.root}{self.workspace_path}"),
        )
        try:
            image = lens.snapshot(None, quiet=False)
            if lens.has_ignored_files and not origin.ignoring:
                self._origins[layer.number] = replace(origin, ignoring=True)
        finally:
            lens.close()
        return self._context.objects.put(Kind.IMAGE, encode(image)), image

    @contextmanager
    def fork_layers(
        self,
        list_kernel_pids: ListKernelPids,
        snapshot: FilesSnapshot,
        layer: KernelLayer | None = None,
    ) -> Iterator[ForkLayers]:
        with self._context.layer_store.prevent_prune():
            if layer is None:
                before = self._layout.upper
                stack = self._frozen_layers(list_kernel_pids, snapshot[1])
                origin = LayerOrigin(snapshot[0], stack, self._layout.ignoring)
                yield ForkLayers(partial(self._create_layer, origin), self._layout.upper != before)
            else:
                origin, instead = self._frozen_layers_of_fork(layer, list_kernel_pids, snapshot[1])
                yield ForkLayers(partial(self._create_layer, origin), instead=instead)

    def base_image(self, layer: KernelLayer) -> Oid:
        return self._origins[layer.number].basis

    def adopt_layer(self, layer: KernelLayer, kernel_pids: Collection[int]) -> int:
        self._check_no_other_users(kernel_pids, "keep a fork")
        with self._context.layer_store.prevent_prune():
            origin, upper = self._origins[layer.number], self._layout.upper + 1
            ignoring = self._layout.ignoring or origin.ignoring
            new = replace(self._layout, upper=upper, stack=origin.stack, ignoring=ignoring)
            self._home.adopt_kernel_layer(layer.number, new.upper)
            failpoint("kernel.taken")
            self._change_layout(new)
        self._home.remove_unused_dirs(self._layout)
        return self._request_fds({"do": "root"})[0]

    def drop_layer(self, layer: KernelLayer) -> None:
        if self._origins.pop(layer.number, None) is not None:
            del self._kernel_layers[layer.number]
            os.close(layer.root)
            os.close(layer.namespace)
            self._home.remove_kernel_layers(layer.number)

    # internals

    def _create_layer(self, origin: LayerOrigin) -> KernelLayer:
        self._last_layer_number += 1
        number = self._last_layer_number
        upper, work = self._home.make_kernel_layer(number, origin.stack, self._context.layer_store)
        try:
            root, namespace = self._mount_layer(origin.stack, upper, work)
        except BaseException:
            self._home.remove_kernel_layers(number)
            raise
        self._origins[number] = origin
        branch = self._kernel_layers[number] = KernelLayer(number, root, namespace)
        return branch

    def _mount_layer(self, stack: LayerStack, upper: str, work: str) -> tuple[int, int]:
        """Mount a workspace of these layers in a new namespace.

        Returns open descriptors of its root directory and of the namespace.
        """
        options = self._context.mount_options(stack, upper, work)
        root, namespace = self._request_fds({"do": "branch", "options": options})
        return root, namespace

    def _frozen_layers_of_fork(
        self, layer: KernelLayer, list_kernel_pids: ListKernelPids, image: Image
    ) -> tuple[LayerOrigin, KernelLayer | None]:
        """Return read-only layers with the files of a fork.

        `_frozen_layers` does this for the machine. If the fork's upper directory became a layer,
        the fork itself continues on a new layer above it, which is returned as well.
        """
        origin, bases = self._origins[layer.number], self._context.layer_store
        upper, stack = self._home.kernel_upper_dir(layer.number), origin.stack
        if stack.image == image and (not origin.ignoring or not os.listdir(upper)):
            return origin, None
        deep = len(stack.layers) >= MAX_STACK_DEPTH and not origin.ignoring
        held = [] if deep else self._other_users(list_kernel_pids(), layer)
        if held and origin.ignoring:
            raise _busy_error(held, "fork a fork of a kernel")
        if deep or held:
            return replace(origin, stack=bases.ensure_stack(image, stack)[0]), None
        name = self._unused_layer_name(layer.number)
        shared = not origin.ignoring
        stack = bases.adopt(upper, name, below=stack, image=image, shared=shared)
        try:
            failpoint("kernel.branchlayer")
            origin = replace(origin, stack=stack)
            return origin, self._create_layer(origin)
        except BaseException:
            bases.undo_adopt(name, upper)
            raise

    def _unused_layer_name(self, number: int) -> str:
        """Return a layer name that no earlier process used.

        A search is needed because each process numbers its layers from 1.
        """
        again = 0
        while (
            self._context.layer_store.root / (name := f"{self._spec.id}-fork{number}.{again}")
        ).exists():
            again += 1
        return name

    def _frozen_layers(self, list_kernel_pids: ListKernelPids, image: Image) -> LayerStack:
        """Return the present files as layers to which nothing writes any more.

        If the upper directory adds nothing, these are the machine's own layers. Otherwise the upper
        directory becomes a layer, and the machine continues with a fresh one. If other processes
        could still write to the old upper directory, the difference is written from the store
        instead.
        """
        standing = self._layout
        same = standing.stack.image == replace(image, system=None)
        if same and (not standing.ignoring or not os.listdir(self._home.upper(standing.upper))):
            return standing.stack
        if len(standing.stack.layers) >= MAX_STACK_DEPTH and not standing.ignoring:
            return self._context.layer_store.ensure_stack(image, standing.stack)[0]
        if standing.ignoring:  # the layers hold ignored files, which are not in the store
            self._check_no_other_users(list_kernel_pids(), "fork a kernel")
        elif self._other_users(list_kernel_pids()):
            return self._context.layer_store.ensure_stack(image, standing.stack)[0]
        return self._start_new_upper(image)

    def _start_new_upper(self, image: Image) -> LayerStack:
        old, bases = self._layout, self._context.layer_store
        flush = getattr(self._context.objects, "flush", None)
        # the next process that opens this machine reads the lower layers from the store
        if flush is not None:
            flush(sync=False)
        name, upper = layer_name(self._spec.id, old.upper), self._home.upper(old.upper)
        stack = bases.adopt(upper, name, below=old.stack, image=image, shared=not old.ignoring)
        try:
            failpoint("kernel.layer")
            new = replace(old, upper=old.upper + 1, stack=stack)
            self._home.make_upper(new.upper, stack, bases)
            self._change_layout(new)
        except BaseException:
            if self._layout is old:
                bases.undo_adopt(name, upper)
                self._home.make_work_dir(old.upper)
                self._swap_mount(self._context.workspace_mount_options(old))
            raise
        return stack

    def _change_layout(self, layout: Any) -> None:
        """Switch the machine to other layers while kernels run.

        `KernelServer._do_follow` moves a kernel to the new layers.
        """
        self._home.make_work_dir(layout.upper)
        self._swap_mount(self._context.workspace_mount_options(layout))
        failpoint("kernel.swapped")
        self._set_layout(layout)
        self._has_uncommitted = True

    def _swap_mount(self, options: str) -> None:
        self._request_fds({"do": "swap", "options": options})

    def _request_fds(self, request: dict[str, Any]) -> list[int]:
        reply, fds = self._supervisor.ask(request)
        if "error" in reply:
            raise Unavailable(
                "mount_refused",
                f"the kernel refused new layers ({reply['error']}); the machine is as it was: try "
                "again",
            )
        return fds

    def _other_users(
        self, kernel_pids: Collection[int], layer: KernelLayer | None = None
    ) -> list[str]:
        """List other processes that use the machine's files, or the files of a fork."""
        fds = [] if layer is None else [layer.root]
        reply, _ = self._supervisor.ask({"do": "holders", "but": list(kernel_pids)}, fds)
        held: list[str] = reply["held"]
        return held

    def _check_no_other_users(self, kernel_pids: Collection[int], action: str) -> None:
        if held := self._other_users(kernel_pids):
            raise _busy_error(held, action)


def _busy_error(users: list[str], action: str) -> Conflict:
    return Conflict(
        "busy",
        f"cannot {action} while other processes work in the workspace: stop "
        f"{', '.join(users[:5])} first",
        processes=users,
    )

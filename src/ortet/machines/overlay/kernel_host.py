"""Kernels in an overlay machine: the supervisor starts them, and remounts layers under them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortet._util.failpoints import failpoint
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
from ortet.machines.overlay.kernel_layers import KernelLayers, files_in_use_error
from ortet.machines.overlay.layer_switcher import mount_refused_error
from ortet.machines.overlay.layers.home import LayerLayout, layer_name
from ortet.machines.overlay.layers.store import MAX_STACK_DEPTH, LayerStack
from ortet.machines.standalone.syscalls import CAP_SYS_CHROOT


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

"""File layers for kernel forks in a live machine."""

from __future__ import annotations

import os
from collections.abc import Collection

from msgspec.structs import replace

from ortet._util.codec import encode
from ortet.errors import Conflict, Unavailable, Unsupported
from ortet.history.records import Image
from ortet.ids import Oid
from ortet.machines.kernels.host import FilesSnapshot, KernelLayer, ListKernelPids
from ortet.machines.kernels.livemounts import foreign_files, processes_rooted_at
from ortet.machines.live.context import LiveEngineContext
from ortet.machines.live.liveruns import LiveCommands
from ortet.machines.overlay.ignoredlayers import add_ignored_layer
from ortet.machines.overlay.layers import LayerStack
from ortet.objects.base import Kind


class LiveKernelLayers(LiveCommands):
    """The part of a live machine that provides layers for kernel forks.

    The machine's own mounts never change, because CRIU must find them as its processes hold them.
    So the layers of a fork are written from the store, and the files of an adopted fork are written
    back.
    """

    _context: LiveEngineContext

    def snapshot_files(self) -> Oid:
        return self._context.objects.put(Kind.IMAGE, encode(self._current_image()))

    def capture_files(self, layer: KernelLayer | None = None) -> FilesSnapshot:
        if layer is not None:
            return super().capture_files(layer)
        image = replace(self._current_image(), services=b"", processes=b"")
        return self._context.objects.put(Kind.IMAGE, encode(image)), image

    def adopt_layer(self, layer: KernelLayer, kernel_pids: Collection[int]) -> int:
        del kernel_pids
        image = self.capture_files(layer)[1]
        current = self._current_image()
        self._restore_files(current, replace(current, root=image.root, links=image.links), None)
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        return os.open(f"/proc/{self._live_process.pid}/root", flags)

    def check_can_adopt(self, pid: int) -> None:
        if left := foreign_files(pid, self._live_process.pid):
            raise Conflict(
                "files_stuck",
                f"a fork that loaded {', '.join(left[:5])} cannot become part of this machine's "
                "image: import it before you fork, or close what was deleted",
                files=left,
            )

    # internals

    def _frozen_layers(self, list_kernel_pids: ListKernelPids, image: Image) -> LayerStack:
        del list_kernel_pids
        stack = self._layout.stack
        if stack.image == replace(image, system=None) and not self._layout.ignoring:
            return stack
        stack = self._context.layer_store.ensure_stack(image, stack)[0]
        return add_ignored_layer(self._context, stack, self._ignored_files())[0]

    def _other_users(
        self, kernel_pids: Collection[int], layer: KernelLayer | None = None
    ) -> list[str]:
        return [] if layer is None else processes_rooted_at(layer.root, kernel_pids)

    def _mount_layer(self, stack: LayerStack, upper: str, work: str) -> tuple[int, int]:
        ground = self._context
        plan = {
            "place": self.workspace_path,
            "root": "",
            "held": ground.mount_sources(self._home),
            "steps": [{"do": "hold", "at": str(ground.layer_store.area / "hold"), "host": True}],
            "workspace": ground.mount_options(stack, upper, work),
        }
        try:
            return ground.supervisor.clone_mounts(self._live_process.pid, plan)
        except Unsupported as error:
            raise Unavailable(
                "mount_refused",
                f"the kernel refused layers for a fork ({error}); the machine is as it was",
            ) from error

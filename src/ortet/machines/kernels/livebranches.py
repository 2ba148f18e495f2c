"""A live machine's part in forks of its Python kernels: layers beside those its processes hold."""

from __future__ import annotations

import os
from collections.abc import Collection

from msgspec.structs import replace

from ortet._util.codec import encode
from ortet.errors import Conflict, Unavailable, Unsupported
from ortet.history.records import Image
from ortet.ids import Oid
from ortet.machines.kernels.host import Branch, Residents, Seen
from ortet.machines.kernels.livemounts import dwellers, left_there
from ortet.machines.live.context import LiveGround
from ortet.machines.live.liveruns import LiveRuns
from ortet.machines.overlay.ignoredlayers import with_ignored
from ortet.machines.overlay.layers import Stack
from ortet.objects.base import Kind


class LiveBranches(LiveRuns):
    """Its own mounts are never changed: CRIU must find them as its processes hold them. So what a
    fork begins with is written from the store, and one that is kept is written back."""

    _ground: LiveGround

    def look(self) -> Oid:
        return self._ground.objects.put(Kind.IMAGE, encode(self._present()))

    def glance(self, of: Branch | None = None) -> Seen:
        if of is not None:
            return super().glance(of)
        image = replace(self._present(), services=b"", processes=b"")
        return self._ground.objects.put(Kind.IMAGE, encode(image)), image

    def take(self, branch: Branch, residents: Collection[int]) -> int:
        del residents
        image = self.glance(branch)[1]
        current = self._present()
        self._rewrite(current, replace(current, root=image.root, links=image.links), None)
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        return os.open(f"/proc/{self._guard.pid}/root", flags)

    def check_return(self, pid: int) -> None:
        if left := left_there(pid, self._guard.pid):
            raise Conflict(
                "files_stuck",
                f"a fork that loaded {', '.join(left[:5])} cannot become part of this machine's "
                "image: import it before you fork, or close what was deleted",
                files=left,
            )

    # inside

    def _below(self, residents: Residents, image: Image) -> Stack:
        del residents
        stack = self._standing.stack
        if stack.image == replace(image, system=None) and not self._standing.ignoring:
            return stack
        stack = self._ground.bases.stack(image, stack)[0]
        return with_ignored(self._ground, stack, self._ignored())[0]

    def _held(self, residents: Collection[int], of: Branch | None = None) -> list[str]:
        return [] if of is None else dwellers(of.root, residents)

    def _mount_branch(self, stack: Stack, upper: str, work: str) -> tuple[int, int]:
        ground = self._ground
        plan = {
            "place": self.place,
            "root": "",
            "held": ground.held(self._home),
            "steps": [{"do": "hold", "at": str(ground.bases.area / "hold"), "host": True}],
            "workspace": ground.options_of(stack, upper, work),
        }
        try:
            return ground.keeper.branch(self._guard.pid, plan)
        except Unsupported as error:
            raise Unavailable(
                "mount_refused",
                f"the kernel refused layers for a fork ({error}); the machine is as it was",
            ) from error

"""An overlay machine as the seat of Python kernels: layers for their forks, and back again."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortet.errors import Conflict, Unavailable
from ortet.graph.records import Image
from ortet.ids import Oid
from ortet.machine.bases import DEEPEST, Stack
from ortet.machine.home import layer_name
from ortet.machine.mounts import CAP_SYS_CHROOT
from ortet.machine.overlaybody import Body
from ortet.machine.seat import Branch, Entered, Grown, Seat, Seen, enter_by
from ortet.store.faults import reach


class Branching(Body, Seat):
    """A fork's workspace is a fresh upper directory over what the machine's files are now."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._grown = 0
        self._from: dict[int, tuple[Oid, Stack]] = {}

    @property
    def place(self) -> str:  # type: ignore[override]
        return str(self._spec.path)

    @property
    def view(self) -> Path:  # type: ignore[override]
        return self.path

    def seat(self) -> Seat:
        return self

    def enter(self, name: str, argv: Sequence[str], *, env: Mapping[str, str]) -> Entered:
        del name
        return enter_by(self._launch, argv, env)

    def _launch(
        self, argv: Sequence[str], *, env: Mapping[str, str], fds: Sequence[int]
    ) -> tuple[int, int]:
        request = {"do": "run", "argv": list(argv), "env": dict(env), "cwd": self.place}
        reply, passed = self._supervisor.ask({**request, "right": CAP_SYS_CHROOT}, fds)
        if "bad" in reply or "errno" in reply:
            raise OSError(reply.get("errno", 0), reply.get("error", reply.get("bad")))
        self._busy = True
        return reply["pid"], passed[0]

    def end(self, pid: int, mark: str, spare: Collection[int]) -> None:
        self._supervisor.ask({"do": "end", "pid": pid, "mark": mark, "spare": list(spare)})

    def code(self, pid: int) -> int | None:
        reply, _ = self._supervisor.ask({"do": "wait", "pid": pid})
        code: int = reply["code"]
        return code

    def glance(self) -> Seen:
        return self._freeze()

    def branch(self, n: int, residents: Collection[int], seen: Seen) -> Grown:
        with self._ground.bases.using():
            before, basis = self._standing.upper, seen[0]
            stack = self._below(residents, seen[1])
            made: list[Branch] = []
            try:
                for _ in range(n):
                    made.append(self._grow(basis, stack))
            except BaseException:
                for branch in made:
                    os.close(branch.root)
                    os.close(branch.namespace)
                    self.drop(branch)
                raise
        return Grown(made, self._standing.upper != before)

    def basis(self, branch: Branch) -> Oid:
        return self._from[branch.number][0]

    def take(self, branch: Branch, residents: Collection[int]) -> int:
        self._undisturbed(residents, "keep a fork")
        with self._ground.bases.using():
            _, stack = self._from[branch.number]
            new = replace(self._standing, upper=self._standing.upper + 1, stack=stack)
            self._home.take_branch(branch.number, new.upper)
            reach("kernel.taken")
            self._change(new)
        self._home.tidy(self._standing)
        return self._ask({"do": "root"})[0]

    def drop(self, branch: Branch) -> None:
        self._from.pop(branch.number, None)
        self._home.drop_branch(branch.number)

    # inside

    def _grow(self, basis: Oid, stack: Stack) -> Branch:
        self._grown += 1
        number = self._grown
        upper, work = self._home.branch(number, stack, self._ground.bases)
        self._from[number] = (basis, stack)
        options = self._ground.options_of(stack, upper, work)
        try:
            root, namespace = self._ask({"do": "branch", "options": options})
        except BaseException:
            self._from.pop(number, None)
            self._home.drop_branch(number)
            raise
        return Branch(number, root, namespace)

    def _below(self, residents: Collection[int], image: Image) -> Stack:
        """The present files as layers that nobody writes to any more.

        They are the machine's own as long as its upper directory adds nothing. Otherwise that
        becomes a layer, and the machine goes on with a fresh one; under processes that would go on
        writing to the old one, the difference is written from the store instead.
        """
        standing = self._standing
        same = standing.stack.image == replace(image, system=None)
        if same and (not standing.ignoring or not os.listdir(self._home.upper(standing.upper))):
            return standing.stack
        if len(standing.stack.layers) >= DEEPEST and not standing.ignoring:
            return self._ground.bases.stack(image, standing.stack)[0]
        if standing.ignoring:  # its layers hold what the store does not
            self._undisturbed(residents, "fork a kernel")
        elif self._held(residents):
            return self._ground.bases.stack(image, standing.stack)[0]
        return self._move_on(image)

    def _move_on(self, image: Image) -> Stack:
        old, bases = self._standing, self._ground.bases
        flush = getattr(self._ground.objects, "flush", None)
        if flush is not None:  # the next process to open this machine asks for what lies below
            flush(sync=False)
        name, upper = layer_name(self._spec.id, old.upper), self._home.upper(old.upper)
        stack = bases.adopt(upper, name, below=old.stack, image=image, shared=not old.ignoring)
        try:
            reach("kernel.layer")
            new = replace(old, upper=old.upper + 1, stack=stack)
            self._home.fresh(new.upper, stack, bases)
            self._change(new)
        except BaseException:
            if self._standing is old:
                bases.give_back(name, upper)
                self._home.work(old.upper)
                self._swap(self._ground.options(old))
            raise
        return stack

    def _change(self, new: Any) -> None:
        """Go to other layers while kernels run: they follow, see Guest."""
        self._home.work(new.upper)
        self._swap(self._ground.options(new))
        reach("kernel.swapped")
        self._stand(new)
        self._unsettled = True

    def _swap(self, options: str) -> None:
        self._ask({"do": "swap", "options": options})

    def _ask(self, request: dict[str, Any]) -> list[int]:
        reply, fds = self._supervisor.ask(request)
        if "error" in reply:
            raise Unavailable(
                "mount_refused",
                f"the kernel refused new layers ({reply['error']}); the machine is as it was: try "
                "again",
            )
        return fds

    def _held(self, residents: Collection[int]) -> list[str]:
        reply, _ = self._supervisor.ask({"do": "holders", "but": list(residents)})
        held: list[str] = reply["held"]
        return held

    def _undisturbed(self, residents: Collection[int], what: str) -> None:
        if held := self._held(residents):
            raise Conflict(
                "busy",
                f"cannot {what} while other processes work in the workspace: stop "
                f"{', '.join(held[:5])} first",
                processes=held,
            )

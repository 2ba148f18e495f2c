"""An overlay machine as the seat of Python kernels: layers for their forks, and back again."""

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
from ortet._util.failpoints import reach
from ortet.errors import Conflict, Unavailable
from ortet.history.records import Image
from ortet.ids import Oid
from ortet.machines.kernels.host import Branch, Entered, Growing, Residents, Seat, Seen, enter_by
from ortet.machines.overlay.home import Standing, layer_name
from ortet.machines.overlay.image import Lens
from ortet.machines.overlay.layers import DEEPEST, Stack
from ortet.machines.overlay.machine import Body
from ortet.machines.standalone.syscalls import CAP_SYS_CHROOT
from ortet.objects.base import Kind


class Origin(msgspec.Struct, frozen=True):
    """What a branch lies on. `basis` is the machine's image when the first of its line forked."""

    basis: Oid
    stack: Stack
    ignoring: bool  # it may hold files that are no state, above or below


class Branching(Body, Seat):
    """A fork's workspace is a fresh upper directory over what the machine's files are now."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._grown = 0
        self._from: dict[int, Origin] = {}
        self._branches: dict[int, Branch] = {}

    @property
    def place(self) -> str:  # type: ignore[override]
        return str(self._spec.path)

    @property
    def view(self) -> Path:  # type: ignore[override]
        return self.path

    def close(self) -> None:
        for branch in list(self._branches.values()):
            self.drop(branch)
        super().close()

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

    def glance(self, of: Branch | None = None) -> Seen:
        if of is None:
            return self._freeze()
        origin = self._from[of.number]
        lens = Lens(
            self._ground,
            self._spec,
            self._home.branch_upper(of.number),
            standing=Standing(0, origin.stack),
            covers=[],
            view=Path(f"/proc/self/fd/{of.root}{self.place}"),
        )
        try:
            image = lens.look(None, quiet=False)
            if lens.ignoring and not origin.ignoring:
                self._from[of.number] = replace(origin, ignoring=True)
        finally:
            lens.close()
        return self._ground.objects.put(Kind.IMAGE, encode(image)), image

    @contextmanager
    def branching(
        self, residents: Residents, seen: Seen, of: Branch | None = None
    ) -> Iterator[Growing]:
        with self._ground.bases.using():
            if of is None:
                before = self._standing.upper
                stack = self._below(residents, seen[1])
                origin = Origin(seen[0], stack, self._standing.ignoring)
                yield Growing(partial(self._grow, origin), self._standing.upper != before)
            else:
                origin, instead = self._below_branch(of, residents, seen[1])
                yield Growing(partial(self._grow, origin), instead=instead)

    def basis(self, branch: Branch) -> Oid:
        return self._from[branch.number].basis

    def take(self, branch: Branch, residents: Collection[int]) -> int:
        self._undisturbed(residents, "keep a fork")
        with self._ground.bases.using():
            origin, upper = self._from[branch.number], self._standing.upper + 1
            ignoring = self._standing.ignoring or origin.ignoring
            new = replace(self._standing, upper=upper, stack=origin.stack, ignoring=ignoring)
            self._home.take_branch(branch.number, new.upper)
            reach("kernel.taken")
            self._change(new)
        self._home.tidy(self._standing)
        return self._ask({"do": "root"})[0]

    def drop(self, branch: Branch) -> None:
        if self._from.pop(branch.number, None) is not None:
            del self._branches[branch.number]
            os.close(branch.root)
            os.close(branch.namespace)
            self._home.drop_branch(branch.number)

    # inside

    def _grow(self, origin: Origin) -> Branch:
        self._grown += 1
        number = self._grown
        upper, work = self._home.branch(number, origin.stack, self._ground.bases)
        try:
            root, namespace = self._mount_branch(origin.stack, upper, work)
        except BaseException:
            self._home.drop_branch(number)
            raise
        self._from[number] = origin
        branch = self._branches[number] = Branch(number, root, namespace)
        return branch

    def _mount_branch(self, stack: Stack, upper: str, work: str) -> tuple[int, int]:
        """A root directory and a namespace, open, in which these are the workspace."""
        options = self._ground.options_of(stack, upper, work)
        root, namespace = self._ask({"do": "branch", "options": options})
        return root, namespace

    def _below_branch(
        self, of: Branch, residents: Residents, image: Image
    ) -> tuple[Origin, Branch | None]:
        """As `_below`, of the files of a fork: where they became a layer it goes on in a branch of
        its own upon that, which is returned."""
        origin, bases = self._from[of.number], self._ground.bases
        upper, stack = self._home.branch_upper(of.number), origin.stack
        if stack.image == image and (not origin.ignoring or not os.listdir(upper)):
            return origin, None
        deep = len(stack.layers) >= DEEPEST and not origin.ignoring
        held = [] if deep else self._held(residents(), of)
        if held and origin.ignoring:
            raise _disturbed(held, "fork a fork of a kernel")
        if deep or held:
            return replace(origin, stack=bases.stack(image, stack)[0]), None
        name = self._layer_of_branch(of.number)
        shared = not origin.ignoring
        stack = bases.adopt(upper, name, below=stack, image=image, shared=shared)
        try:
            reach("kernel.branchlayer")
            origin = replace(origin, stack=stack)
            return origin, self._grow(origin)
        except BaseException:
            bases.give_back(name, upper)
            raise

    def _layer_of_branch(self, number: int) -> str:
        """One that no earlier process took: their branches were numbered from 1 too."""
        again = 0
        while (
            self._ground.bases.root / (name := f"{self._spec.id}-fork{number}.{again}")
        ).exists():
            again += 1
        return name

    def _below(self, residents: Residents, image: Image) -> Stack:
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
            self._undisturbed(residents(), "fork a kernel")
        elif self._held(residents()):
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

    def _held(self, residents: Collection[int], of: Branch | None = None) -> list[str]:
        """Other processes at work in the machine's files, or in those of a fork."""
        fds = [] if of is None else [of.root]
        reply, _ = self._supervisor.ask({"do": "holders", "but": list(residents)}, fds)
        held: list[str] = reply["held"]
        return held

    def _undisturbed(self, residents: Collection[int], what: str) -> None:
        if held := self._held(residents):
            raise _disturbed(held, what)


def _disturbed(held: list[str], what: str) -> Conflict:
    return Conflict(
        "busy",
        f"cannot {what} while other processes work in the workspace: stop "
        f"{', '.join(held[:5])} first",
        processes=held,
    )

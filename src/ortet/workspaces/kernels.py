"""The verbs of a workspace around Python kernels in its machine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ortet._util.validation import DICT, TEXT, may_be, must_be
from ortet.history.commits import CommitInfo
from ortet.ids import Oid
from ortet.machines.base import Machine
from ortet.workspaces.programs import Alive

if TYPE_CHECKING:
    from ortet.machines.kernels.kernel import Kernel
    from ortet.machines.kernels.manager import Kernels


class Seated(Alive):
    """The half of Workspace whose machine has interpreters."""

    _kernels: Kernels | None = None

    @abstractmethod
    def _looking(self) -> AbstractContextManager[Machine]: ...

    @abstractmethod
    def _record(
        self, image: Oid, message: str, parents: Sequence[Oid] = (), verb: str = "commit"
    ) -> CommitInfo: ...

    def kernel(
        self,
        name: str = "main",
        *,
        python: str | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> Kernel:
        """A Python interpreter that stays, in the machine; the same one as long as it lives.

        `python` is its program: by default that of the workspace's .venv, else this process's.
        """
        return self.start_kernel(name, python=python, env=env)[0]

    def start_kernel(
        self,
        name: str,
        *,
        python: str | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> tuple[Kernel, bool]:
        """The same, and whether it is a new one."""
        from ortet.machines.kernels.manager import Kernels  # here: a commit does without it

        must_be(TEXT, name=name)
        may_be(TEXT, python=python)
        may_be(DICT, env=env)
        for variable, value in (env or {}).items():
            must_be(TEXT, **{"a name in env": variable})
            may_be(TEXT, **{f"env {variable}": value})
        machine = self._live()
        if self._kernels is None:
            seat = machine.seat()
            self._kernels = Kernels(seat, looking=self._looking, safe=self._keep_unless)
        given = {**machine.withheld(), **self.company.variables(), **(env or {})}
        return self._kernels.get(name, python=python, env=given)

    def _keep_unless(self, image: Oid) -> None:
        """Commit the present files, unless they are those of an image."""
        with self._looking() as machine:
            seat = machine.seat()
            # of a live machine only files: forks are alive, and an image cannot hold those
            now = seat.glance()[0] if seat.carries else self._freeze()
            if now != image:
                self._record(now, "before keeping a fork of a kernel")

    def _end_kernels(self) -> None:
        if self._kernels is not None:
            self._kernels.close()

"""The workspace verbs for Python kernels in its machine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ortet._util.validation import DICT, TEXT, optional, require
from ortet.history.commits import CommitInfo
from ortet.ids import Oid
from ortet.machines.base import Machine
from ortet.workspaces.programs import WorkspaceProgramsMixin

if TYPE_CHECKING:
    from ortet.machines.kernels.kernel import Kernel
    from ortet.machines.kernels.manager import KernelManager


class WorkspaceKernelsMixin(WorkspaceProgramsMixin):
    """The verbs of Workspace for Python interpreters."""

    _kernels: KernelManager | None = None

    @abstractmethod
    def _shared_access(self) -> AbstractContextManager[Machine]: ...

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
        """Return a Python interpreter that keeps running in the machine; started at first use.

        Args:
            name: the name of the kernel. The same name gives the same kernel while it lives.
            python: the interpreter; by default that of the workspace's .venv, else this process's.
            env: variables to set; None unsets one.
        """
        return self.start_kernel(name, python=python, env=env)[0]

    def start_kernel(
        self,
        name: str,
        *,
        python: str | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> tuple[Kernel, bool]:
        """Return a kernel, and True if this call started it."""
        # imported here: a commit does not need it
        from ortet.machines.kernels.manager import KernelManager

        require(TEXT, name=name)
        optional(TEXT, python=python)
        optional(DICT, env=env)
        for variable, value in (env or {}).items():
            require(TEXT, **{"a name in env": variable})
            optional(TEXT, **{f"env {variable}": value})
        machine = self._open_machine()
        if self._kernels is None:
            seat = machine.kernel_host()
            self._kernels = KernelManager(
                seat, reading_files=self._shared_access, before_replace=self._commit_unless_image
            )
        given = {**machine.withheld_variables(), **self.participant.variables(), **(env or {})}
        return self._kernels.get(name, python=python, env=given)

    def _commit_unless_image(self, image: Oid) -> None:
        """Commit the present files, unless they equal the image."""
        with self._shared_access() as machine:
            seat = machine.kernel_host()
            # in a live machine only the files: an image cannot hold running kernel forks
            now = seat.capture_files()[0] if seat.captures_processes else self._snapshot()
            if now != image:
                self._record(now, "before keeping a fork of a kernel")

    def _end_kernels(self) -> None:
        if self._kernels is not None:
            self._kernels.close()

"""Python kernels in the machine of a workspace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ortet._util.validation import DICT, TEXT, optional, require
from ortet.ids import Oid
from ortet.workspaces.files import WorkspaceFiles

if TYPE_CHECKING:
    from ortet.machines.kernels.kernel import Kernel
    from ortet.machines.kernels.manager import KernelManager


class WorkspaceKernels:
    """Starts and finds Python interpreters in the machine of a workspace."""

    def __init__(self, files: WorkspaceFiles) -> None:
        self._files = files
        self._manager: KernelManager | None = None

    def get(
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
        return self.start(name, python=python, env=env)[0]

    def start(
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
        machine = self._files.open_machine()
        if self._manager is None:
            seat = machine.kernel_host()
            self._manager = KernelManager(
                seat,
                reading_files=self._files.shared_access,
                before_replace=self._commit_unless_image,
            )
        given = {
            **machine.withheld_variables(),
            **self._files.branch.participant.variables(),
            **(env or {}),
        }
        return self._manager.get(name, python=python, env=given)

    def _commit_unless_image(self, image: Oid) -> None:
        """Commit the present files, unless they equal the image."""
        with self._files.shared_access() as machine:
            seat = machine.kernel_host()
            # in a live machine only the files: an image cannot hold running kernel forks
            now = seat.capture_files()[0] if seat.captures_processes else self._files.snapshot()
            if now != image:
                self._files.record(now, "before keeping a fork of a kernel")

    def close(self) -> None:
        """End all kernels."""
        if self._manager is not None:
            self._manager.close()

"""The session verbs for Python kernels in its machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortet.errors import NotFound
from ortet.journal.events import Draft
from ortet.sessions.machine.programs import ProgramsMixin

if TYPE_CHECKING:
    from ortet.sessions.machine.kernels import SessionKernel, SessionKernels
    from ortet.workspaces.workspace import Workspace


class KernelsMixin(ProgramsMixin):
    """The verbs of Session for Python interpreters."""

    _kernels: SessionKernels | None = None
    _files: Workspace | None

    def kernel(
        self,
        name: str = "main",
        *,
        python: str | None = None,
        env: Mapping[str, str | None] | None = None,
        keep: Sequence[str] | None = None,
    ) -> SessionKernel:
        """Return a Python interpreter in the machine. Its runs are recorded as actions.

        The interpreter starts at its first run. If the engine carries processes, a commit holds all
        of it.

        Args:
            name: the name of the kernel.
            python: the interpreter; by default that of the workspace's .venv, else this process's.
            env: variables to set; None unsets one.
            keep: names of variables to save with each commit. After a restore, or in a fork, a new
                interpreter starts with them.
        """
        # imported here: most sessions have no kernel
        from ortet.sessions.machine.kernels import SessionKernels

        self._check_open()
        if self._kernels is None:
            self._kernels = SessionKernels(
                self._act_in_kernel,
                lambda: self.machine,
                self._saved_variables,
                self._save_variables,
            )
        return self._kernels.get(name, python=python, env=env, keep=keep)

    def kernels(self) -> list[SessionKernel]:
        """Return the running kernels and their forks. Starts nothing; safe from any thread."""
        return self._kernels.all() if self._kernels is not None else []

    def is_running(self) -> bool:
        """Return True if programs or kernels run in the machine.

        They end with the session handle.
        """
        if self.kernels():
            return True
        return self._files is not None and self._files.is_running()

    def _act_in_kernel(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with self._action_scope():
            return self._effects.act(function, args, {}, **options)

    def _saved_variables(self, name: str) -> bytes | None:
        try:
            return self.artifact_data(name)
        except NotFound:
            return None

    def _save_variables(self, name: str, data: bytes, lost: str) -> None:
        """Store the variables of a kernel, and record a warning about those that were not saved."""
        self._store_artifact(name, kind="kernel", data=data, media="application/octet-stream")
        if lost:
            told = {"what": "kernel", "kind": "not_kept", "error": lost}
            self._writer.add(Draft("warning", told, self._hub.author))

    def _before_commit(self) -> None:
        if self._kernels is not None:
            self._kernels.save()
        super()._before_commit()

    def _before_move(self, verb: str) -> None:
        if self._kernels is not None:
            self._kernels.close(f"the session went elsewhere ({verb}): kernel() starts anew")

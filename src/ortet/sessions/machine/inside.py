"""The verbs of a session around Python kernels in its machine."""

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
    """The half of Session that has interpreters."""

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
        """A Python interpreter that stays, in the machine; its runs are journaled as commands are.

        The variables named by `keep` are part of a commit: after a restore, or in a fork of the
        session, a new interpreter begins with them. Where an engine carries processes, all of it
        is. It starts at its first run.
        """
        from ortet.sessions.machine.kernels import SessionKernels  # here: most sessions have none

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
        """Those that live, with their forks; starts nothing. Any thread may ask."""
        return self._kernels.all() if self._kernels is not None else []

    def is_running(self) -> bool:
        """Whether programs or interpreters go on in its machine, which end when it is let go."""
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
        """The variables of an interpreter, and what of them could not be kept."""
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

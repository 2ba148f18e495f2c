"""The verbs of a session around Python kernels in its machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortet.errors import NotFound
from ortet.journal.events import Draft
from ortet.sessions.machine.programs import Tending

if TYPE_CHECKING:
    from ortet.sessions.machine.kernels import Interpreters, SessionKernel
    from ortet.workspaces.workspace import Workspace


class Inside(Tending):
    """The half of Session that has interpreters."""

    _interpreters: Interpreters | None = None
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
        from ortet.sessions.machine.kernels import Interpreters  # here: most sessions have none

        self._live()
        if self._interpreters is None:
            self._interpreters = Interpreters(
                self._act_inside, lambda: self.machine, self._kept_by, self._keep_for
            )
        return self._interpreters.get(name, python=python, env=env, keep=keep)

    def kernels(self) -> list[SessionKernel]:
        """Those that live, with their forks; starts nothing. Any thread may ask."""
        return self._interpreters.all() if self._interpreters is not None else []

    def is_running(self) -> bool:
        """Whether programs or interpreters go on in its machine, which end when it is let go."""
        if self.kernels():
            return True
        return self._files is not None and self._files.is_running()

    def _act_inside(self, function: Callable[..., Any], *args: Any, **how: Any) -> Any:
        with self._acting():
            return self._deeds.act(function, args, {}, **how)

    def _kept_by(self, name: str) -> bytes | None:
        try:
            return self.artifact_data(name)
        except NotFound:
            return None

    def _keep_for(self, name: str, data: bytes, lost: str) -> None:
        """The variables of an interpreter, and what of them could not be kept."""
        self._made(name, kind="kernel", data=data, media="application/octet-stream")
        if lost:
            told = {"what": "kernel", "kind": "not_kept", "error": lost}
            self._ledger.add(Draft("warning", told, self._hub.author))

    def _before_commit(self) -> None:
        if self._interpreters is not None:
            self._interpreters.save()
        super()._before_commit()

    def _leave_behind(self, verb: str) -> None:
        if self._interpreters is not None:
            self._interpreters.close(f"the session went elsewhere ({verb}): kernel() starts anew")

"""Commands in a live machine, run by its pid 1; hooks of a copy, too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ortet.machines.base import Command, Loss, Result
from ortet.machines.command import argv_of
from ortet.machines.control.client import Indoors
from ortet.machines.folder import inside
from ortet.machines.live.process import LiveGuard
from ortet.machines.live.secret_env import handed
from ortet.machines.overlay.overlaymachine import OverlayMachine
from ortet.machines.secrets.names import is_secret

HOSTNAME = 12
"""Letters of a machine's id that are its name."""


class LiveRuns(OverlayMachine):
    """The part of a live machine that runs commands to their end."""

    _running: LiveGuard | None

    @property
    def _guard(self) -> LiveGuard:
        assert self._running is not None
        return self._running

    @property
    def indoors(self) -> Indoors:
        """Its pid 1, to be asked."""
        return self._guard.indoors

    @property
    def losses(self) -> list[Loss]:
        missed = [] if self._running is None else self._running.outlet.missed()
        return [*super().losses, *missed]

    def run(
        self,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        **options: Any,
    ) -> Result:
        argv, where = argv_of(command), inside(cwd)
        self._check_directory(where)
        return self._attended(argv, where, os.urandom(8).hex(), env=env, **options)

    def run_with(
        self,
        secrets: Mapping[str, str],
        command: Command,
        *,
        env: Mapping[str, str | None],
        cwd: str = "",
        **options: Any,
    ) -> Result:
        argv, where = argv_of(command), inside(cwd)
        self._check_directory(where)
        mark = os.urandom(8).hex()
        with handed(self._guard.pid, mark, secrets) as before:
            return self._attended([*before, *argv], where, mark, env=env, **options)

    def withheld(self) -> dict[str, str | None]:
        """Secrets of ours: they would be in the memory that a commit keeps."""
        return {name: None for name, value in os.environ.items() if is_secret(name, value)}

    def _environment(self, env: Mapping[str, str | None], mark: str) -> dict[str, str]:
        return super()._environment({**self.withheld(), **env}, mark)

    def _attended(
        self,
        argv: list[str],
        where: str,
        mark: str,
        *,
        env: Mapping[str, str | None] | None,
        **options: Any,
    ) -> Result:
        self._busy = True
        group = self._guard.group
        kills = group.kills()
        result = self.indoors.run(
            argv,
            env=self._environment(env or {}, mark),
            cwd=os.path.join(str(self._spec.path), where),
            mark=mark,
            **options,
        )
        return group.explain(result, kills)

    def _renew(self, hooks: str) -> list[Loss]:
        """Make a copy a machine of its own before it does anything: id, name, randomness, and what
        its user wants done then."""
        ran = self.indoors.renew(
            hooks,
            machine_id=self._spec.id,
            hostname=self._spec.id[-HOSTNAME:],
            entropy=os.urandom(64),
            place=str(self._spec.path),
        )
        return [
            Loss(hook.path, "hook", f"it ended with {hook.code}: {hook.output[-200:].strip()}")
            for hook in ran
            if hook.code != 0
        ]

"""Commands and hooks in a live machine, started by its pid 1."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ortet.machines.base import Command, Loss, Result
from ortet.machines.command import argv_of
from ortet.machines.control.client import InitClient
from ortet.machines.folder import relative_cwd
from ortet.machines.live.process import LiveMachineProcess
from ortet.machines.live.secret_env import secret_launcher_argv
from ortet.machines.overlay.overlaymachine import OverlayMachine
from ortet.machines.secrets.names import is_secret

HOSTNAME_LENGTH = 12
"""Length of a machine's hostname: the last characters of its id."""


class LiveCommands(OverlayMachine):
    """The part of a live machine that runs commands to their end."""

    _process: LiveMachineProcess | None

    @property
    def _live_process(self) -> LiveMachineProcess:
        assert self._process is not None
        return self._process

    @property
    def init_client(self) -> InitClient:
        """Client of the machine's pid 1."""
        return self._live_process.init_client

    @property
    def losses(self) -> list[Loss]:
        missed = [] if self._process is None else self._process.outbound.runtime_losses()
        return [*super().losses, *missed]

    def run(
        self,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        **options: Any,
    ) -> Result:
        argv, where = argv_of(command), relative_cwd(cwd)
        self._check_directory(where)
        return self._run_in_machine(argv, where, os.urandom(8).hex(), env=env, **options)

    def run_with_secrets(
        self,
        secrets: Mapping[str, str],
        command: Command,
        *,
        env: Mapping[str, str | None],
        cwd: str = "",
        **options: Any,
    ) -> Result:
        argv, where = argv_of(command), relative_cwd(cwd)
        self._check_directory(where)
        mark = os.urandom(8).hex()
        with secret_launcher_argv(self._live_process.pid, mark, secrets) as before:
            return self._run_in_machine([*before, *argv], where, mark, env=env, **options)

    def withheld_variables(self) -> dict[str, str | None]:
        """Return the secret variables of this process, each mapped to None.

        A command must not inherit them, because a commit stores its memory.
        """
        return {name: None for name, value in os.environ.items() if is_secret(name, value)}

    def _environment(self, env: Mapping[str, str | None], mark: str) -> dict[str, str]:
        return super()._environment({**self.withheld_variables(), **env}, mark)

    def _run_in_machine(
        self,
        argv: list[str],
        directory: str,
        mark: str,
        *,
        env: Mapping[str, str | None] | None,
        **options: Any,
    ) -> Result:
        self._busy = True
        group = self._live_process.cgroup
        kills = group.oom_kills()
        result = self.init_client.run(
            argv,
            env=self._environment(env or {}, mark),
            cwd=os.path.join(str(self._spec.path), directory),
            mark=mark,
            **options,
        )
        return group.explain_limits(result, kills)

    def _renew_identity(self, hook_kind: str) -> list[Loss]:
        """Give a copied machine its own identity before it runs anything else.

        Sets id, hostname and random seed, and runs the user's hooks. Returns a loss for each failed
        hook.
        """
        ran = self.init_client.renew_identity(
            hook_kind,
            machine_id=self._spec.id,
            hostname=self._spec.id[-HOSTNAME_LENGTH:],
            entropy=os.urandom(64),
            workspace_path=str(self._spec.path),
        )
        return [
            Loss(hook.path, "hook", f"it ended with {hook.code}: {hook.output[-200:].strip()}")
            for hook in ran
            if hook.code != 0
        ]

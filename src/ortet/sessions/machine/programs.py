"""The session verbs for services, shells and ports: spawn, shell, ps, logs, expose."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from ortet.machines.base import Command
from ortet.sessions.history.navigation import NavigationMixin

if TYPE_CHECKING:
    from ortet.machines.jobs import Job, JobInfo, ProcessInfo
    from ortet.workspaces.workspace import Workspace


class ProgramsMixin(NavigationMixin):
    """The verbs of Session for programs that keep running. Starting one is an action."""

    @property
    @abstractmethod
    def machine(self) -> Workspace: ...

    @abstractmethod
    def _start_machine(self) -> None: ...

    def spawn(self, name: str, command: Command, *, why: str = "", **options: Any) -> Job:
        """Start a service in the machine under a name.

        Args:
            name: the name of the service.
            command: a str for `sh -c`, or a list to execute.
            why: the reason, recorded with the action.
            **options: see `Workspace.spawn`.
        """
        said = command if isinstance(command, str) else list(command)
        return self._spawn_action("spawn", (name, said), options, why)

    def shell(self, name: str = "main", *, why: str = "", **options: Any) -> Job:
        """Return the shell of this name, started at first use.

        Args:
            name: the name of the shell.
            why: the reason, recorded with the action.
            **options: see `Workspace.shell`.
        """
        self._check_open()
        for job in self.machine.programs.jobs():
            if job.name == name and job.code is None:
                return self.machine.programs.job(name)
        return self._spawn_action("shell", (name,), options, why)

    def job(self, name: str) -> Job:
        """Return the service or shell of this name, running or ended."""
        return self.machine.programs.job(name)

    def jobs(self) -> list[JobInfo]:
        """Return all services and shells, running or ended."""
        return self.machine.programs.jobs()

    def ps(self) -> list[ProcessInfo]:
        """Return all processes of the machine."""
        return self.machine.programs.ps()

    def logs(self, name: str, last: int | None = None) -> str:
        """Return the last output of a service or shell, or its `last` bytes."""
        return self.machine.programs.logs(name, last)

    def expose(self, port: int, *, at: int = 0) -> int:
        """Forward a loopback port of this host to `port` in the machine, and return it.

        Args:
            port: the port in the machine.
            at: the port of this host; 0 for any free one.
        """
        return self.machine.programs.expose(port, at=at)

    def unexpose(self, port: int) -> bool:
        """Close the forward to `port`. Return False if there was none."""
        return self.machine.programs.unexpose(port)

    def _spawn_action(
        self, verb: str, args: tuple[Any, ...], options: dict[str, Any], why: str
    ) -> Job:
        with self._action_scope():
            self._start_machine()
            job: Job = self._effects.act(
                getattr(self.machine, verb),
                args,
                options,
                why=why,
                name=verb,
                record=lambda job: {"name": job.name, "pid": job.pid},
                recall=lambda data: self.machine.programs.job(data["name"]),
            )
        return job

"""The verbs of a session about programs that go on: spawn, shell, ps, logs, expose."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from ortet.machines.base import Command
from ortet.sessions.history.navigation import NavigationMixin

if TYPE_CHECKING:
    from ortet.machines.control.jobs import Job, JobInfo, ProcessInfo
    from ortet.workspaces.workspace import Workspace


class ProgramsMixin(NavigationMixin):
    """The half of Session that keeps programs; starting one is an action like any other."""

    @property
    @abstractmethod
    def machine(self) -> Workspace: ...

    @abstractmethod
    def _start_machine(self) -> None: ...

    def spawn(self, name: str, command: Command, *, why: str = "", **options: Any) -> Job:
        """Start a service in the machine, under a name; see Workspace.spawn."""
        said = command if isinstance(command, str) else list(command)
        return self._spawn_action("spawn", (name, said), options, why)

    def shell(self, name: str = "main", *, why: str = "", **options: Any) -> Job:
        """The shell of this name, at a terminal of its own; started at first use."""
        self._check_open()
        for job in self.machine.jobs():
            if job.name == name and job.code is None:
                return self.machine.job(name)
        return self._spawn_action("shell", (name,), options, why)

    def job(self, name: str) -> Job:
        """The service or shell of this name, running or ended."""
        return self.machine.job(name)

    def jobs(self) -> list[JobInfo]:
        """Services and shells, running or ended."""
        return self.machine.jobs()

    def ps(self) -> list[ProcessInfo]:
        """Every process of the machine."""
        return self.machine.ps()

    def logs(self, name: str, last: int | None = None) -> str:
        """The output of a service or shell, as far as it is kept."""
        return self.machine.logs(name, last)

    def expose(self, port: int, *, at: int = 0) -> int:
        """A loopback port of this host that leads to `port` in the machine; it closes with it."""
        return self.machine.expose(port, at=at)

    def unexpose(self, port: int) -> bool:
        """Close it again; False when nothing leads there."""
        return self.machine.unexpose(port)

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
                recall=lambda data: self.machine.job(data["name"]),
            )
        return job

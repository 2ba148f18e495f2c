"""The verbs of a workspace about programs that go on: services, shells, ports."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.validation import TEXT, must_be
from ortet.errors import Conflict, Invalid, NotFound, Unsupported
from ortet.ids import Oid
from ortet.machines.base import Command, Door, Machine, News, Output, Report, Result
from ortet.machines.secrets.names import is_secret
from ortet.workspaces.onbranch import OnBranch
from ortet.workspaces.turns import Turn

if TYPE_CHECKING:
    from ortet.machines.control.jobs import Job, JobInfo, Process

_SHELL = ("/bin/bash", "-i")
_SCREEN = (24, 80)


class Alive(OnBranch):
    """The half of Workspace whose machine has programs that outlive a call.

    They are part of every commit of an engine that carries processes; the others refuse them.
    """

    _turn: Turn

    def run(
        self,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        output: Output | None = None,
        secrets: Mapping[str, str] | Sequence[str] | None = None,
    ) -> Result:
        """Run a command in the machine, with the workspace as working directory. It has this
        process's environment, the variables its session has recorded, and `env`; None unsets.

        `secrets` are names in the vault, or variable -> name: the command has their values in its
        environment, and until it has ended nothing is committed.
        """
        from ortet.machines.command import check_run

        options: dict[str, Any] = {"cwd": cwd, "timeout": timeout, "stdin": stdin, "output": output}
        check_run(command, env=env, secrets=secrets, **options)
        if isinstance(stdin, str):
            options["stdin"] = stdin.encode("utf-8", "surrogateescape")
        machine, given = self._live(), {**self.company.variables(), **(env or {})}
        hidden = self.secrets_of(secrets)
        if not hidden:
            return machine.run(command, env=given, **options)
        with self._in_use(hidden):
            return machine.run_with(hidden, command, env=given, **options)

    def secrets_of(self, secrets: Mapping[str, str] | Sequence[str] | None) -> dict[str, str]:
        """Their values now, by variable."""
        if not secrets:
            return {}
        from ortet.machines.command import names_of

        return {name: self._secret(one) for name, one in names_of(secrets).items()}

    def _secret(self, name: str) -> str:
        """Of the vault; else one of this process's own environment, which machines do not get."""
        try:
            return self.hub.vault.get(name)
        except NotFound:
            value = self.hub.environ.get(name, "")
            if not is_secret(name, value):
                raise
            return value

    @contextmanager
    def _in_use(self, secrets: Mapping[str, str]) -> Iterator[None]:
        names = list(secrets)
        self._using.append(names)
        try:
            yield
        finally:
            self._using.remove(names)

    def _freeze(self) -> Oid:
        """The present state, to be committed."""
        if self._using:
            names = ", ".join(sorted({name for names in self._using for name in names}))
            raise Conflict(
                "secret_in_use",
                f"a command that was given {names} is running, and a commit could hold it: wait "
                "until it has ended",
            )
        return self._live().freeze()

    def spawn(
        self,
        name: str,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        stdin: bool = False,
    ) -> Job:
        """Start a service: a program that goes on in the background, under a name."""
        from ortet.machines.command import check_run

        must_be(TEXT, name=name)
        check_run(command, env=env, cwd=cwd)
        given = {**self.company.variables(), **(env or {})}
        return self._live().spawn(check_job(name), command, env=given, cwd=cwd, stdin=stdin)

    def shell(
        self,
        name: str = "main",
        *,
        command: Command = _SHELL,
        size: tuple[int, int] = _SCREEN,
        env: Mapping[str, str | None] | None = None,
    ) -> Job:
        """The shell of this name, at a terminal of `size` (rows, columns); started at first use."""
        must_be(TEXT, name=name)
        machine = self._live()
        for job in machine.jobs():
            if job.name == name and job.code is None:
                return machine.job(name)
        given = {"TERM": "xterm-256color", **self.company.variables(), **(env or {})}
        return machine.spawn(check_job(name), command, kind="shell", env=given, tty=size)

    def job(self, name: str) -> Job:
        """The service or shell of this name, running or ended."""
        must_be(TEXT, name=name)
        return self._live().job(name)

    def jobs(self) -> list[JobInfo]:
        """Services and shells, running or ended."""
        return [job for job in self._live().jobs() if job.name]

    def is_running(self) -> bool:
        """Whether services or shells go on, which end when it is closed."""
        try:
            return any(job.code is None for job in self.jobs())
        except Unsupported:  # beside a directory in place nothing goes on
            return False

    def ps(self) -> list[Process]:
        """Every process of the machine."""
        return self._live().ps()

    def logs(self, name: str, last: int | None = None) -> str:
        """The output of a service or shell, as far as it is kept: a megabyte, or `last` bytes."""
        return self.job(name).logs(last).decode("utf-8", "replace")

    def expose(self, port: int, *, at: int = 0) -> int:
        """Let connections to a loopback port of this host, `at` or any free one, into the machine's
        `port`; returns the host's. It closes with the machine."""
        return self._live().expose(port, at)

    def exposed(self) -> dict[int, int]:
        """Ports of this host that lead into the machine, by its own."""
        return self._live().exposed()

    def unexpose(self, port: int) -> bool:
        """Close what `expose` opened for the machine's `port`, with its connections; False when
        nothing leads there."""
        machine = self._live()
        known = port in machine.exposed()
        machine.unexpose(port)
        return known

    def check_restart(self, target: Oid) -> None:
        """Unsupported where `restart` could not start what was a service at this commit."""
        from ortet.machines.services import services_of

        state = self.hub.history.state(target)
        image = self.hub.read_image(Oid(state.machine)) if state.machine else None
        if self._live().engine == "folder" and image and services_of(self.hub.objects, image):
            raise Unsupported(
                "no_restart",
                "programs cannot go on beside a directory in place: leave restart (--restart) out, "
                "the report names the command of each; or fork the commit and start the copy "
                "(`ortet fork REF`, `ortet start NAME`)",
            )

    def restart(self, target: Oid, report: Report) -> Report:
        """Start what was a service at a commit and does not run; returns the report with that."""
        from ortet.machines.services import services_of

        machine, image = self._live(), self.hub.history.image(target)
        wanted = services_of(self.hub.objects, image)
        if not wanted:
            return report
        running = {job.name for job in machine.jobs() if job.code is None}
        started = [one for one in wanted if one.name not in running]
        for one in started:
            given = self.company.variables()
            machine.spawn(one.name, one.argv, env=given, cwd=one.cwd)
        names = {one.name for one in started}
        return msgspec.structs.replace(
            report,
            losses=[loss for loss in report.losses if loss.path not in names],
            started=[*report.started, *sorted(names)],
        )

    @property
    def door(self) -> Door:
        """Where other processes of this host can ask whoever keeps its programs."""
        return self._live().door

    def listen(self, timeout: float, wake: int = -1) -> News | None:
        """Wait until files changed that are state, since the last look; see Machine.listen. It
        needs no turn, and nobody is kept from moving the files meanwhile."""
        return self._live().listen(timeout, wake)

    def rest(self) -> None:
        """Nothing is being done with it for a while: others may drop it. `resume` goes on."""
        self._turn.let_go()

    def resume(self) -> bool:
        """After `rest`: see where its branch is. False when it was dropped, or another process was
        killed while it moved the files: then it is to be opened anew."""
        if not self._turn.take_again() or not self._live().sound:
            return False
        self.company = self.hub.company(self.name)
        self.look()
        self.come_back()
        return True

    @abstractmethod
    def come_back(self) -> Alive: ...

    @abstractmethod
    def _live(self) -> Machine: ...


def check_job(name: str) -> str:
    if not name.strip() or "/" in name or len(name) > 100 or not name.isprintable():
        raise Invalid("bad_name", f"{name!r} cannot name a program: give a short word")
    return name

"""The verbs of a workspace about programs that go on: services, shells, ports."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.validation import TEXT, require
from ortet.errors import Conflict, Invalid, NotFound, Unsupported
from ortet.ids import Oid
from ortet.machines.base import (
    ChangeNotice,
    Command,
    ControlSocket,
    Machine,
    OutputCallback,
    Report,
    Result,
)
from ortet.machines.secrets.names import is_secret
from ortet.workspaces.onbranch import WorkspaceBranchMixin
from ortet.workspaces.turns import MachineLock

if TYPE_CHECKING:
    from ortet.machines.control.jobs import Job, JobInfo, ProcessInfo

_SHELL = ("/bin/bash", "-i")
_SCREEN = (24, 80)


class WorkspaceProgramsMixin(WorkspaceBranchMixin):
    """The half of Workspace whose machine has programs that outlive a call.

    They are part of every commit of an engine that carries processes; the others refuse them.
    """

    _lock: MachineLock

    def run(
        self,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        output: OutputCallback | None = None,
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
        machine, given = self._open_machine(), {**self.participant.variables(), **(env or {})}
        hidden = self.secret_values(secrets)
        if not hidden:
            return machine.run(command, env=given, **options)
        with self._mark_secrets_in_use(hidden):
            return machine.run_with_secrets(hidden, command, env=given, **options)

    def secret_values(self, secrets: Mapping[str, str] | Sequence[str] | None) -> dict[str, str]:
        """Their values now, by variable."""
        if not secrets:
            return {}
        from ortet.machines.command import secret_names

        return {name: self._secret(one) for name, one in secret_names(secrets).items()}

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
    def _mark_secrets_in_use(self, secrets: Mapping[str, str]) -> Iterator[None]:
        names = list(secrets)
        self._secrets_in_use.append(names)
        try:
            yield
        finally:
            self._secrets_in_use.remove(names)

    def _snapshot(self) -> Oid:
        """The present state, to be committed."""
        if self._secrets_in_use:
            names = ", ".join(sorted({name for names in self._secrets_in_use for name in names}))
            raise Conflict(
                "secret_in_use",
                f"a command that was given {names} is running, and a commit could hold it: wait "
                "until it has ended",
            )
        return self._open_machine().snapshot()

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

        require(TEXT, name=name)
        check_run(command, env=env, cwd=cwd)
        given = {**self.participant.variables(), **(env or {})}
        return self._open_machine().spawn(check_job(name), command, env=given, cwd=cwd, stdin=stdin)

    def shell(
        self,
        name: str = "main",
        *,
        command: Command = _SHELL,
        size: tuple[int, int] = _SCREEN,
        env: Mapping[str, str | None] | None = None,
    ) -> Job:
        """The shell of this name, at a terminal of `size` (rows, columns); started at first use."""
        require(TEXT, name=name)
        machine = self._open_machine()
        for job in machine.jobs():
            if job.name == name and job.code is None:
                return machine.job(name)
        given = {"TERM": "xterm-256color", **self.participant.variables(), **(env or {})}
        return machine.spawn(check_job(name), command, kind="shell", env=given, tty=size)

    def job(self, name: str) -> Job:
        """The service or shell of this name, running or ended."""
        require(TEXT, name=name)
        return self._open_machine().job(name)

    def jobs(self) -> list[JobInfo]:
        """Services and shells, running or ended."""
        return [job for job in self._open_machine().jobs() if job.name]

    def is_running(self) -> bool:
        """Whether services or shells go on, which end when it is closed."""
        try:
            return any(job.code is None for job in self.jobs())
        except Unsupported:  # beside a directory in place nothing goes on
            return False

    def ps(self) -> list[ProcessInfo]:
        """Every process of the machine."""
        return self._open_machine().ps()

    def logs(self, name: str, last: int | None = None) -> str:
        """The output of a service or shell, as far as it is kept: a megabyte, or `last` bytes."""
        return self.job(name).logs(last).decode("utf-8", "replace")

    def expose(self, port: int, *, at: int = 0) -> int:
        """Let connections to a loopback port of this host, `at` or any free one, into the machine's
        `port`; returns the host's. It closes with the machine."""
        return self._open_machine().expose(port, at)

    def exposed(self) -> dict[int, int]:
        """Ports of this host that lead into the machine, by its own."""
        return self._open_machine().exposed_ports()

    def unexpose(self, port: int) -> bool:
        """Close what `expose` opened for the machine's `port`, with its connections; False when
        nothing leads there."""
        machine = self._open_machine()
        known = port in machine.exposed_ports()
        machine.unexpose(port)
        return known

    def check_restart(self, target: Oid) -> None:
        """Unsupported where `restart` could not start what was a service at this commit."""
        from ortet.machines.services import load_services

        state = self.hub.history.state(target)
        image = self.hub.read_image(Oid(state.machine)) if state.machine else None
        if (
            self._open_machine().engine == "folder"
            and image
            and load_services(self.hub.objects, image)
        ):
            raise Unsupported(
                "no_restart",
                "programs cannot go on beside a directory in place: leave restart (--restart) out, "
                "the report names the command of each; or fork the commit and start the copy "
                "(`ortet fork REF`, `ortet start NAME`)",
            )

    def restart(self, target: Oid, report: Report) -> Report:
        """Start what was a service at a commit and does not run; returns the report with that."""
        from ortet.machines.services import load_services

        machine, image = self._open_machine(), self.hub.history.image(target)
        wanted = load_services(self.hub.objects, image)
        if not wanted:
            return report
        running = {job.name for job in machine.jobs() if job.code is None}
        started = [one for one in wanted if one.name not in running]
        for one in started:
            given = self.participant.variables()
            machine.spawn(one.name, one.argv, env=given, cwd=one.cwd)
        names = {one.name for one in started}
        return msgspec.structs.replace(
            report,
            losses=[loss for loss in report.losses if loss.path not in names],
            started=[*report.started, *sorted(names)],
        )

    @property
    def control_socket(self) -> ControlSocket:
        """Where other processes of this host can ask whoever keeps its programs."""
        return self._open_machine().control_socket

    def wait_for_changes(self, timeout: float, wake: int = -1) -> ChangeNotice | None:
        """Wait until files changed that are state, since the last look; see Machine.listen. It
        needs no turn, and nobody is kept from moving the files meanwhile."""
        return self._open_machine().wait_for_changes(timeout, wake)

    def suspend(self) -> None:
        """Nothing is being done with it for a while: others may drop it. `resume` goes on."""
        self._lock.release()

    def resume(self) -> bool:
        """After `rest`: see where its branch is. False when it was dropped, or another process was
        killed while it moved the files: then it is to be opened anew."""
        if not self._lock.reacquire() or not self._open_machine().is_consistent:
            return False
        self.participant = self.hub.commit_participant(self.name)
        self.refresh_head()
        self.recover_interrupted_restore()
        return True

    @abstractmethod
    def recover_interrupted_restore(self) -> WorkspaceProgramsMixin: ...

    @abstractmethod
    def _open_machine(self) -> Machine: ...


def check_job(name: str) -> str:
    if not name.strip() or "/" in name or len(name) > 100 or not name.isprintable():
        raise Invalid("bad_name", f"{name!r} cannot name a program: give a short word")
    return name

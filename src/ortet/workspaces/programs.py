"""The workspace verbs for commands, services, shells, ports and Python kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.validation import DICT, TEXT, optional, require
from ortet.errors import Invalid, NotFound, Unsupported
from ortet.ids import Oid
from ortet.machines.base import Command, OutputCallback, Report, Result
from ortet.machines.secrets.names import is_secret
from ortet.workspaces.files import WorkspaceFiles

if TYPE_CHECKING:
    from ortet.machines.jobs import Job, JobInfo, ProcessInfo
    from ortet.machines.kernels.kernel import Kernel
    from ortet.machines.kernels.manager import KernelManager

SHELL = ("/bin/bash", "-i")
INITIAL_SCREEN = (24, 80)


class WorkspacePrograms:
    """Runs programs in the machine of a workspace.

    Services and shells outlive a call. They are part of each commit if the engine carries
    processes; other engines refuse them.
    """

    def __init__(self, files: WorkspaceFiles) -> None:
        self._files = files
        self._store = files.store

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
        """Run a command in the machine, with the workspace as working directory.

        The command gets the environment of this process, the variables that the session has
        recorded, and `env`.

        Args:
            command: a str for `sh -c`, or a list to execute.
            env: variables to set; None unsets one.
            cwd: the working directory below the workspace.
            timeout: the limit in seconds.
            stdin: the standard input.
            output: called with output as it arrives.
            secrets: names in the vault, or variable -> name. The command gets their values as
                variables. Nothing can be committed until it has ended.

        Returns:
            The result, with `exit_code`, `stdout` and `stderr`.
        """
        from ortet.machines.command import check_run

        options: dict[str, Any] = {"cwd": cwd, "timeout": timeout, "stdin": stdin, "output": output}
        check_run(command, env=env, secrets=secrets, **options)
        if isinstance(stdin, str):
            options["stdin"] = stdin.encode("utf-8", "surrogateescape")
        machine, given = (
            self._files.open_machine(),
            {**self._files.branch.participant.variables(), **(env or {})},
        )
        hidden = self.secret_values(secrets)
        if not hidden:
            return machine.run(command, env=given, **options)
        with self._files.secrets_in_use(hidden):
            return machine.run_with_secrets(hidden, command, env=given, **options)

    def secret_values(self, secrets: Mapping[str, str] | Sequence[str] | None) -> dict[str, str]:
        """Return the current values of secrets, by variable."""
        if not secrets:
            return {}
        from ortet.machines.command import secret_names

        return {name: self._secret(one) for name, one in secret_names(secrets).items()}

    def _secret(self, name: str) -> str:
        """Return a secret of the vault, or else of this process's environment.

        Machines do not get the secrets in the environment of this process.
        """
        try:
            return self._store.vault.get(name)
        except NotFound:
            value = self._store.environ.get(name, "")
            if not is_secret(name, value):
                raise
            return value

    def spawn(
        self,
        name: str,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        stdin: bool = False,
    ) -> Job:
        """Start a service: a named program that runs in the background.

        Args:
            name: the name of the service.
            command: a str for `sh -c`, or a list to execute.
            env: variables to set; None unsets one.
            cwd: the working directory below the workspace.
            stdin: keep the standard input open for writing.
        """
        from ortet.machines.command import check_run

        require(TEXT, name=name)
        check_run(command, env=env, cwd=cwd)
        given = {**self._files.branch.participant.variables(), **(env or {})}
        return self._files.open_machine().spawn(
            check_job(name), command, env=given, cwd=cwd, stdin=stdin
        )

    def shell(
        self,
        name: str = "main",
        *,
        command: Command = SHELL,
        size: tuple[int, int] = INITIAL_SCREEN,
        env: Mapping[str, str | None] | None = None,
    ) -> Job:
        """Return the shell of this name. It is started at first use.

        Args:
            name: the name of the shell.
            command: the program to start.
            size: rows and columns of its terminal.
            env: variables to set; None unsets one.
        """
        require(TEXT, name=name)
        machine = self._files.open_machine()
        for job in machine.jobs():
            if job.name == name and job.code is None:
                return machine.job(name)
        given = {
            "TERM": "xterm-256color",
            **self._files.branch.participant.variables(),
            **(env or {}),
        }
        return machine.spawn(check_job(name), command, kind="shell", env=given, tty=size)

    def job(self, name: str) -> Job:
        """Return the service or shell of this name, running or ended."""
        require(TEXT, name=name)
        return self._files.open_machine().job(name)

    def jobs(self) -> list[JobInfo]:
        """Return all services and shells, running or ended."""
        return [job for job in self._files.open_machine().jobs() if job.name]

    def is_running(self) -> bool:
        """Return True if services or shells are running. They end when the workspace is closed."""
        try:
            return any(job.code is None for job in self.jobs())
        except Unsupported:  # the folder engine has no services
            return False

    def ps(self) -> list[ProcessInfo]:
        """Return all processes of the machine."""
        return self._files.open_machine().ps()

    def logs(self, name: str, last: int | None = None) -> str:
        """Return the last output of a service or shell: up to one megabyte, or `last` bytes."""
        return self.job(name).logs(last).decode("utf-8", "replace")

    def expose(self, port: int, *, at: int = 0) -> int:
        """Forward a loopback port of this host to a port of the machine.

        The forward ends with the machine.

        Args:
            port: the port in the machine.
            at: the port of this host; 0 for any free one.

        Returns:
            The port of this host.
        """
        return self._files.open_machine().expose(port, at)

    def exposed(self) -> dict[int, int]:
        """Return the forwarded ports: machine port -> port of this host."""
        return self._files.open_machine().exposed_ports()

    def unexpose(self, port: int) -> bool:
        """Close the forward to `port` with its connections. Return False if there was none."""
        machine = self._files.open_machine()
        known = port in machine.exposed_ports()
        machine.unexpose(port)
        return known

    def check_restart(self, target: Oid) -> None:
        """Raise Unsupported if `restart` could not start the services of this commit."""
        from ortet.machines.services import load_services

        state = self._store.history.state(target)
        image = self._store.read_image(Oid(state.machine)) if state.machine else None
        if (
            self._files.open_machine().engine == "folder"
            and image
            and load_services(self._store.objects, image)
        ):
            raise Unsupported(
                "no_restart",
                "programs cannot go on beside a directory in place: leave restart (--restart) out, "
                "the report names the command of each; or fork the commit and start the copy "
                "(`ortet fork REF`, `ortet start NAME`)",
            )

    def restart(self, target: Oid, report: Report) -> Report:
        """Start the services of a commit that do not run. Return the report with their names."""
        from ortet.machines.services import load_services

        machine, image = self._files.open_machine(), self._store.history.image(target)
        wanted = load_services(self._store.objects, image)
        if not wanted:
            return report
        running = {job.name for job in machine.jobs() if job.code is None}
        started = [one for one in wanted if one.name not in running]
        for one in started:
            given = self._files.branch.participant.variables()
            machine.spawn(one.name, one.argv, env=given, cwd=one.cwd)
        names = {one.name for one in started}
        return msgspec.structs.replace(
            report,
            losses=[loss for loss in report.losses if loss.path not in names],
            started=[*report.started, *sorted(names)],
        )


def check_job(name: str) -> str:
    if not name.strip() or "/" in name or len(name) > 100 or not name.isprintable():
        raise Invalid("bad_name", f"{name!r} cannot name a program: give a short word")
    return name


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

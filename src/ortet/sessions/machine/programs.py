"""The programs facet of a session: commands, services, shells, processes, ports and kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortet.errors import NotFound
from ortet.machines.base import Command, OutputCallback, Result
from ortet.sessions.actions.actions import CallOptions
from ortet.sessions.actions.artifacts import ArtifactStore
from ortet.sessions.machine.session_files import SessionFiles
from ortet.sessions.results import parse_command_result, record_command_result
from ortet.sessions.writing.pipeline import VerbPipeline
from ortet.workspaces.programs import INITIAL_SCREEN, SHELL

if TYPE_CHECKING:
    from ortet.machines.jobs import Job, JobInfo, ProcessInfo
    from ortet.sessions.actions.actions import ByArguments, KeyScope, Replay, Where
    from ortet.sessions.machine.kernels import SessionKernel, SessionKernels


class SessionPrograms:
    """The programs in the machine of an open session. Starting one is an action."""

    def __init__(
        self, pipeline: VerbPipeline, files: SessionFiles, artifacts: ArtifactStore
    ) -> None:
        self._pipeline = pipeline
        self._files = files
        self._artifacts = artifacts
        self._kernels: SessionKernels | None = None

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
        why: str = "",
        replay: Replay | None = None,
        key: str | ByArguments | None = None,
        scope: KeyScope | None = None,
        where: Where | None = None,
    ) -> Result:
        """Run a command in the machine and record it as an action; see `Session.run`."""
        from ortet.machines.command import check_run

        check_run(
            command,
            env=env,
            cwd=cwd,
            timeout=timeout,
            stdin=stdin,
            output=output,
            secrets=secrets,
        )
        options = _non_default(
            env=env, cwd=cwd, timeout=timeout, stdin=stdin, output=output, secrets=secrets
        )
        shown_command = command if isinstance(command, str) else list(command)
        with self._pipeline.action_scope():
            if not key:
                self._files.start()
            result: Result = self._pipeline.runner.act(
                self._run_here,
                (shown_command,),
                options,
                CallOptions(
                    why=why,
                    replay=replay,
                    key=key,
                    scope=scope,
                    name="run",
                    where=where,
                    default_where="workspace",
                    record=lambda result: record_command_result(self._redacted(result, secrets)),
                    recall=parse_command_result,
                ),
            )
        return result

    def spawn(
        self,
        name: str,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        stdin: bool = False,
        why: str = "",
    ) -> Job:
        """Start a service in the machine under a name; see `Session.spawn`."""
        shown_command = command if isinstance(command, str) else list(command)
        options = _non_default(env=env, cwd=cwd, stdin=stdin)
        return self._spawn_action("spawn", (name, shown_command), options, why)

    def shell(
        self,
        name: str = "main",
        *,
        command: Command = SHELL,
        size: tuple[int, int] = INITIAL_SCREEN,
        env: Mapping[str, str | None] | None = None,
        why: str = "",
    ) -> Job:
        """Return the shell of this name, started at first use; see `Session.shell`."""
        self._pipeline.check_open()
        for job in self._files.machine.programs.jobs():
            if job.name == name and job.code is None:
                return self._files.machine.programs.job(name)
        options = _non_default(env=env)
        if command != SHELL:
            options["command"] = command
        if size != INITIAL_SCREEN:
            options["size"] = size
        return self._spawn_action("shell", (name,), options, why)

    def job(self, name: str) -> Job:
        """Return the service or shell of this name, running or ended."""
        return self._files.machine.programs.job(name)

    def jobs(self) -> list[JobInfo]:
        """Return all services and shells, running or ended."""
        return self._files.machine.programs.jobs()

    def ps(self) -> list[ProcessInfo]:
        """Return all processes of the machine."""
        return self._files.machine.programs.ps()

    def logs(self, name: str, last: int | None = None) -> str:
        """Return the last output of a service or shell.

        Args:
            name: the name of the service or shell.
            last: return only this many bytes.
        """
        return self._files.machine.programs.logs(name, last)

    def expose(self, port: int, *, at: int = 0) -> int:
        """Forward a loopback port of this host to `port` in the machine, and return it.

        Args:
            port: the port in the machine.
            at: the port of this host; 0 for any free one.
        """
        return self._files.machine.programs.expose(port, at=at)

    def unexpose(self, port: int) -> bool:
        """Close the forward to `port`. Return False if there was none."""
        return self._files.machine.programs.unexpose(port)

    # kernels

    def kernel(
        self,
        name: str = "main",
        *,
        python: str | None = None,
        env: Mapping[str, str | None] | None = None,
        keep: Sequence[str] | None = None,
    ) -> SessionKernel:
        """Return a Python interpreter in the machine; see `Session.kernel`."""
        self._pipeline.check_open()
        if self._kernels is None:
            # imported here: most sessions have no kernel
            from ortet.sessions.machine.kernels import SessionKernels

            self._kernels = SessionKernels(
                self._act_in_kernel,
                lambda: self._files.machine,
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
        files = self._files.attached
        return files is not None and files.programs.is_running()

    # hooks

    def before_action(self) -> None:
        """Nothing: an action starts its own programs."""

    def before_commit(self) -> None:
        """Save the variables of kernels, so that the commit has them."""
        if self._kernels is not None:
            self._kernels.save()

    def before_move(self, verb: str) -> None:
        """End the kernels: they belong to the state that the session leaves."""
        if self._kernels is not None:
            self._kernels.close(f"the session went elsewhere ({verb}): kernel() starts anew")

    # private

    def _run_here(self, command: Command, **options: Any) -> Result:
        return self._files.machine.run(command, **options)

    def _redacted(
        self, result: Result, secrets: Mapping[str, str] | Sequence[str] | None
    ) -> Result:
        if not secrets:
            return result
        from ortet.vault.redaction import redact_result

        values: dict[str, str] = self._files.machine.programs.secret_values(secrets)
        return redact_result(result, values)

    def _spawn_action(
        self, verb: str, args: tuple[Any, ...], options: dict[str, Any], why: str
    ) -> Job:
        with self._pipeline.action_scope():
            self._files.start()
            job: Job = self._pipeline.runner.act(
                getattr(self._files.machine, verb),
                args,
                options,
                CallOptions(
                    why=why,
                    name=verb,
                    default_where="workspace",
                    record=lambda job: {"name": job.name, "pid": job.pid},
                    recall=lambda data: self._files.machine.programs.job(data["name"]),
                ),
            )
        return job

    def _act_in_kernel(self, function: Any, *args: Any, **options: Any) -> Any:
        return self._pipeline.act(
            function, args, {}, CallOptions(default_where="workspace", **options)
        )

    def _saved_variables(self, name: str) -> bytes | None:
        try:
            return self._artifacts.artifact_data(name)
        except NotFound:
            return None

    def _save_variables(self, name: str, data: bytes, lost: str) -> None:
        """Store the variables of a kernel, and record a warning about those that were not saved."""
        self._artifacts.store_version(
            name, kind="kernel", data=data, media="application/octet-stream"
        )
        if lost:
            self._pipeline.warn("kernel", "not_kept", lost)


def _non_default(**options: Any) -> dict[str, Any]:
    """Return the options that differ from their defaults.

    Only these are recorded: the digest of a call must not change when an option is added.
    """
    return {name: value for name, value in options.items() if value not in (None, "", False)}

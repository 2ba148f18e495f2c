"""Requests to pid 1 of a machine: runs, shells, services, listings."""

from __future__ import annotations

import errno
import os
import time
from binascii import a2b_base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.errors import Invalid, NotFound, OrtetError
from ortet.machines.base import OutputCallback, Result
from ortet.machines.command import OUTPUT_LIMIT_BYTES, HeadTailBuffer, start_failure_result
from ortet.machines.control.connection import InitConnection
from ortet.machines.jobs import (
    Ask,
    HookResult,
    Job,
    JobInfo,
    JobKind,
    ProcessInfo,
    encode_base64,
    reply_error,
    shell_exit_code,
)
from ortet.machines.standalone.process_tree import KILL_TIMEOUT_SECONDS

# Follows a run inside a machine to its end, as `command` does for a run on the host.

_INPUT_CHUNK_BYTES = 1 << 19  # bytes of input in one request
_REQUEST_WAIT_SECONDS = 20.0  # longest wait of one request; longer waits are repeated
_StreamName = Literal["stdout", "stderr"]
_STREAMS: tuple[_StreamName, _StreamName] = ("stdout", "stderr")


def run_in_machine(
    ask: Ask,
    start: Callable[[], int],
    *,
    program: str,
    timeout: float | None,
    stdin: bytes | None,
    output: OutputCallback | None,
    limit: int,
) -> tuple[Result, bool]:
    """Start a run, write its input and read its output until it ends.

    At the time-out, and if `output` raises, the run is killed with all processes it started.
    Returns the result, and True if any process of the machine is still alive.
    """
    began = time.monotonic()
    try:
        number = start()
    except OSError as error:
        return start_failure_result(program, error, time.monotonic() - began), False
    run = _MachineRun(ask, number, stdin=stdin, output=output, limit=limit)
    try:
        timed_out = not run.read_until(None if timeout is None else began + timeout)
        if timed_out:
            run.kill()
            run.read_until(time.monotonic() + KILL_TIMEOUT_SECONDS)
    except BaseException:
        with suppress(OrtetError):
            run.kill()
            ask(
                {"do": "wait", "id": number, "wait": KILL_TIMEOUT_SECONDS}, KILL_TIMEOUT_SECONDS
            )  # waiting also makes pid 1 forget it
        raise
    duration = time.monotonic() - began
    code = 124 if timed_out else run.code
    stdout, stderr = (run.captured[stream].text() for stream in _STREAMS)
    return Result(code, stdout, stderr, duration, timed_out), run.busy


class _MachineRun:
    def __init__(
        self,
        ask: Ask,
        job_id: int,
        *,
        stdin: bytes | None,
        output: OutputCallback | None,
        limit: int,
    ) -> None:
        self.captured = {stream: HeadTailBuffer(limit) for stream in _STREAMS}
        self.code = 0
        self.busy = True
        self._ask = ask
        self._job_id = job_id
        self._stdin = stdin
        self._output = output
        self._accepted_bytes = 0  # bytes of stdin that were accepted
        self._cursors = [0, 0]

    def read_until(self, deadline: float | None) -> bool:
        """Read until the run has ended (True) or the deadline passes (False)."""
        while True:
            left = (
                _REQUEST_WAIT_SECONDS
                if deadline is None
                else min(deadline - time.monotonic(), _REQUEST_WAIT_SECONDS)
            )
            if left <= 0:
                return False
            reply = self._ask(self._request(left), left)
            if "error" in reply or "bad" in reply:
                raise reply_error(reply, "run")
            self._accepted_bytes = reply["taken"]
            for number, stream in enumerate(_STREAMS):
                self._add_output(stream, a2b_base64(reply[stream]), reply["missed"][number])
            self._cursors = reply["cursors"]
            if reply["ended"]:
                self.code, self.busy = shell_exit_code(reply["code"]) or 0, reply["busy"]
                return True

    def kill(self) -> None:
        self._ask({"do": "kill", "id": self._job_id}, 2 * KILL_TIMEOUT_SECONDS)

    def _request(self, wait: float) -> dict[str, Any]:
        request = {"do": "follow", "id": self._job_id, "cursors": self._cursors, "wait": wait}
        if self._stdin is None:
            return request
        part = self._stdin[self._accepted_bytes : self._accepted_bytes + _INPUT_CHUNK_BYTES]
        last = self._accepted_bytes + len(part) >= len(self._stdin)
        return {**request, "data": encode_base64(part), "at": self._accepted_bytes, "eof": last}

    def _add_output(self, stream: _StreamName, data: bytes, missed: int) -> None:
        # Bytes are lost only if the connection broke: the run then does not wait for its reader.
        if missed:
            data = f"\n[... {missed} bytes lost ...]\n".encode() + data
        if data:
            self.captured[stream].add(data)
            if self._output is not None:
                self._output(stream, data)


class InitClient:
    """Client of pid 1 of one machine; any number of threads may use it at once."""

    def __init__(
        self, pid: int, *, path: str | os.PathLike[str] | None = None, lock_path: str = ""
    ) -> None:
        self._connection = InitConnection(pid, path=path, lock_path=lock_path)
        self.pid = pid
        self.path = self._connection.path
        self.busy = False
        """True if a process besides pid 1 was alive after the last run, spawn or `read_state`."""

    def ask(self, message: dict[str, Any], wait: float = 0.0) -> dict[str, Any]:
        """Send a request and return its reply, as `InitConnection.ask` does."""
        return self._connection.ask(message, wait)

    def disconnect(self) -> None:
        """Close all connections to the machine before a dump; requests wait until `reconnect`."""
        self._connection.disconnect()

    def reconnect(self) -> None:
        """Let pid 1 listen again, after a dump and in a restored machine."""
        self._connection.reconnect()

    def close(self) -> None:
        """Close all connections. The machine keeps running."""
        self._connection.close()

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        timeout: float | None = None,
        stdin: bytes | None = None,
        output: OutputCallback | None = None,
        mark: str = "",
        limit: int = OUTPUT_LIMIT_BYTES,
    ) -> Result:
        """Run a command to its end, as `command.run_command` does on the host.

        `env` is the complete environment and contains `mark`, which identifies the descendants of
        the command that must be killed at the time-out.
        """

        def start() -> int:
            request = _start_request("run", argv, env=env, cwd=cwd, mark=mark)
            request |= {"stdin": stdin is not None, "followed": True}
            number: int = self._start(request)["id"]
            return number

        result, self.busy = run_in_machine(
            self.ask,
            start,
            program=argv[0],
            timeout=timeout,
            stdin=stdin,
            output=output,
            limit=limit,
        )
        return result

    def spawn(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        kind: JobKind = "service",
        tty: tuple[int, int] | None = None,
        stdin: bool = False,
        mark: str = "",
        declared: bool = False,
    ) -> Job:
        """Start a job that outlives this call and every connection; `tty` gives it a terminal.

        Args:
            tty: rows and columns of the terminal, or None to use pipes.
            stdin: keep a pipe open for `Job.write`.
            mark: identifies the processes of the job by their environment.
            declared: a declared service is started again where its process cannot be restored.

        Raises:
            Conflict: "name_taken", if a job of this name runs. An ended job is replaced.
            NotFound: "no_program", if there is no such program.
        """
        request = _start_request(kind, argv, env=env, cwd=cwd, mark=mark)
        request |= {"name": name, "tty": tty, "stdin": stdin, "declared": declared}
        try:
            reply = self._start(request)
        except FileNotFoundError as error:
            message = f"{argv[0]}: command not found: install it, or give its path"
            raise NotFound("no_program", message) from error
        except OSError as error:
            message = f"{argv[0]} cannot be executed ({error.strerror}): correct the command"
            raise Invalid("not_executable", message) from error
        self.busy = True
        return Job(self.ask, id=reply["id"], name=name, pid=reply["pid"])

    def job(self, name: str) -> Job:
        """Return the running shell or service of this name, or the last one that ended."""
        for job in reversed(self.jobs()):
            if job.name == name:
                return Job(self.ask, id=job.id, name=name, pid=job.pid)
        raise reply_error({"error": "no_job"}, name)

    def jobs(self) -> list[JobInfo]:
        """Return the jobs of the machine, including ended ones whose output is kept."""
        listed = self.ask({"do": "ps", "processes": False})["jobs"]
        return msgspec.convert(
            [{**one, "code": shell_exit_code(one["code"])} for one in listed],
            thread_safe_struct(list[JobInfo]),
        )

    def ps(self) -> list[ProcessInfo]:
        """Return every process of the machine except its pid 1."""
        return msgspec.convert(
            self.ask({"do": "ps"})["processes"], thread_safe_struct(list[ProcessInfo])
        )

    # the machine

    def read_state(self, workspace_path: str) -> list[str]:
        """Update `busy`, and return the files that processes may write through memory mappings.

        The paths are below `workspace_path` and relative to it.
        """
        reply = self.ask({"do": "state", "place": workspace_path})
        self.busy = reply["busy"]
        mapped: list[str] = reply["mapped"]
        return mapped

    def renew_identity(
        self,
        hook_kind: str,
        *,
        machine_id: str,
        hostname: str,
        entropy: bytes,
        workspace_path: str,
        env: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> list[HookResult]:
        """Give a copied machine its own identity, then run its "on-fork" or "on-restore" hooks.

        Each hook may take `timeout` seconds. Runs that were in progress in the original machine
        continue in the copy without a reader.
        """
        request = {
            "do": "renew",
            "hooks": hook_kind,
            "machine_id": machine_id,
            "hostname": hostname,
            "entropy": encode_base64(entropy),
            "place": workspace_path,
            "env": dict(env) if env else None,
            "timeout": timeout,
        }
        reply = self.ask(request, 100 * timeout)
        if "hooks" not in reply:
            raise reply_error(reply, hook_kind)
        return msgspec.convert(reply["hooks"], thread_safe_struct(list[HookResult]))

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a start request. Raises OSError if the program cannot be executed."""
        reply = self.ask(request)
        if reply.get("directory"):
            raise _directory_error(request["cwd"], reply["errno"], reply["error"])
        if "errno" in reply:
            raise OSError(reply["errno"], reply["error"])
        if "bad" in reply:
            message = f"it cannot be run ({reply['bad']}): correct the command or its environment"
            raise Invalid("bad_command", message)
        if "error" in reply:
            raise reply_error(reply, request["name"])
        return reply


def _start_request(
    kind: JobKind, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, mark: str
) -> dict[str, Any]:
    request = {"argv": list(argv), "env": dict(env), "cwd": cwd, "mark": mark}
    return {"do": "start", "kind": kind, **request}


def _directory_error(cwd: str, number: int, why: str) -> OrtetError:
    """Build the error that `command.check_directory` raises on the host for the same problem."""
    if number == errno.ENOENT:
        return NotFound("no_directory", f"no directory {cwd}: make it, or give another cwd")
    if number == errno.ENOTDIR:
        return Invalid("not_a_directory", f"{cwd} is not a directory: give another cwd")
    return Invalid("closed_directory", f"{cwd} may not be entered ({why}): give another cwd")

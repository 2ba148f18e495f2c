"""Runs a command to its end on the host: streams, timeout, and kill of all descendants."""

from __future__ import annotations

import fcntl
import os
import re
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Literal, Protocol

from ortet._util.validation import (
    CALLABLE,
    DICT,
    NUMBER,
    TEXT,
    TEXT_OR_BYTES,
    check_text,
    check_texts,
    optional,
)
from ortet.errors import Invalid, NotFound
from ortet.ids import Random
from ortet.machines.base import Command, OutputCallback, Result
from ortet.machines.poll import MAX_POLL_SECONDS
from ortet.machines.standalone.process_tree import RUN_MARK_VARIABLE, kill_run

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
OUTPUT_LIMIT_BYTES = 64 * 1024 * 1024
"""The most bytes of each stream that a Result keeps. `output` gets all of them."""

_CHUNK = 1024 * 1024
_POLL_SECONDS = 0.02  # interval for checking the exit if there is no pidfd

ArgvWrapper = Callable[[list[str]], Sequence[str]]
"""A function from argv to the argv that is really executed, with a launcher in front."""


def run_command(
    command: Command,
    *,
    cwd: str | Path,
    env: Mapping[str, str | None] | None = None,
    timeout: float | None = None,
    stdin: bytes | None = None,
    output: OutputCallback | None = None,
    wrap: ArgvWrapper | None = None,
    limit: int = OUTPUT_LIMIT_BYTES,
    random: Random = os.urandom,
) -> Result:
    """Start a command in its own session and return when it ends.

    Children that the command leaves behind continue. At the timeout, and when `output` raises, the
    command and all of its descendants are killed. A command that cannot be started gives exit code
    127 or 126, as in a shell.

    Args:
        command: A str for `sh -c`, or a list.
        cwd: The working directory.
        env: Changes to this process's environment; None unsets a variable.
        timeout: In seconds; None means no limit.
        stdin: The input of the command; None means /dev/null.
        output: Called with each chunk of output.
        wrap: Puts a launcher in front of argv.
        limit: The most bytes of each stream to keep in the result.

    Raises:
        NotFound, Invalid: For a bad `cwd`, an empty list or a NUL byte.
    """
    argv = argv_of(command)
    check_directory(cwd)
    mark = random(8).hex()
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            wrap(argv) if wrap else argv,
            cwd=cwd,
            env=build_environment(env or {}, mark),
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
    except OSError as error:
        return start_failure_result(argv[0], error, time.monotonic() - began)
    except ValueError as error:
        message = f"it cannot be run ({error}): correct the command or its environment"
        raise Invalid("bad_command", message) from error
    return communicate(
        process,
        pidfd=_pidfd(process.pid),
        kill=lambda: kill_run(mark, process.pid),
        started_at=began,
        timeout=timeout,
        stdin=stdin,
        output=output,
        limit=limit,
    )


class CommandProcess(Protocol):
    """A started command: the common part of `subprocess.Popen` and of overlay machines."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def poll(self) -> int | None: ...
    def wait(self) -> int: ...


def communicate(
    process: CommandProcess,
    *,
    pidfd: int | None,
    kill: Callable[[], None],
    started_at: float,
    timeout: float | None,
    stdin: bytes | None,
    output: OutputCallback | None,
    limit: int = OUTPUT_LIMIT_BYTES,
) -> Result:
    """Write stdin to a started command and read its output until it ends.

    `kill` must end the command and all processes that it started.
    """
    run = _CommandPipes(process, pidfd, output=output, limit=limit)
    try:
        timed_out = run.pump_until(None if timeout is None else started_at + timeout, stdin)
        if timed_out:
            kill()
        code = run.finish()
    except BaseException:
        kill()
        run.close()
        raise
    stdout, stderr = run.texts()
    return Result(
        124 if timed_out else code, stdout, stderr, time.monotonic() - started_at, timed_out
    )


class _CommandPipes:
    """The pipes of one started command, served by one selector."""

    def __init__(
        self,
        process: CommandProcess,
        pidfd: int | None,
        *,
        output: OutputCallback | None,
        limit: int,
    ) -> None:
        assert process.stdout is not None and process.stderr is not None
        self._process = process
        self._output = output
        self._captured: dict[str, HeadTailBuffer] = {
            "stdout": HeadTailBuffer(limit),
            "stderr": HeadTailBuffer(limit),
        }
        self._open: dict[IO[bytes], Literal["stdout", "stderr"]] = {
            process.stdout: "stdout",
            process.stderr: "stderr",
        }
        self._selector = selectors.DefaultSelector()
        for stream in self._open:
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ)
        self._pidfd = pidfd
        if self._pidfd is not None:
            self._selector.register(self._pidfd, selectors.EVENT_READ)

    def pump_until(self, deadline: float | None, stdin: bytes | None) -> bool:
        """Pump until the command ends (return False) or the deadline passes (return True)."""
        remaining_input = memoryview(stdin or b"")
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
            self._selector.register(self._process.stdin, selectors.EVENT_WRITE)
        while True:
            seconds_left = None if deadline is None else deadline - time.monotonic()
            if seconds_left is not None and seconds_left <= 0:
                return True
            if self._pidfd is None:
                seconds_left = (
                    _POLL_SECONDS if seconds_left is None else min(seconds_left, _POLL_SECONDS)
                )
            for key, _ in self._selector.select(
                None if seconds_left is None else min(seconds_left, MAX_POLL_SECONDS)
            ):
                if key.fileobj is self._process.stdin:
                    remaining_input = self._feed(remaining_input)
                elif key.fileobj == self._pidfd:
                    return False
                else:
                    self._read(key.fileobj)  # type: ignore[arg-type]
            if self._pidfd is None and self._process.poll() is not None:
                return False

    def finish(self) -> int:
        """Read the rest of the pipes, reap the process, and return its exit code.

        A thread drains the pipes that background children still hold.
        """
        for stream in list(self._open):
            bytes_left = _capacity(stream)
            while bytes_left > 0 and (count := self._read(stream, bytes_left)):
                bytes_left -= count
        code = self._process.wait()
        held_pipes = [os.dup(stream.fileno()) for stream in self._open]
        self.close()
        if held_pipes:
            threading.Thread(
                target=_drain, args=(held_pipes,), daemon=True, name="ortet-drain"
            ).start()
        return 128 - code if code < 0 else code

    def texts(self) -> tuple[str, str]:
        return self._captured["stdout"].text(), self._captured["stderr"].text()

    def close(self) -> None:
        self._selector.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self._process.wait()

    def _feed(self, remaining_input: memoryview) -> memoryview:
        assert self._process.stdin is not None
        try:
            remaining_input = remaining_input[
                os.write(self._process.stdin.fileno(), remaining_input[:_CHUNK]) :
            ]
        except BlockingIOError:
            return remaining_input
        except BrokenPipeError:
            remaining_input = remaining_input[:0]  # the command closed its stdin
        if not remaining_input:
            self._selector.unregister(self._process.stdin)
            self._process.stdin.close()
        return remaining_input

    def _read(self, stream: IO[bytes], max_bytes: int = _CHUNK) -> int:
        """Read once and return the number of bytes; 0 if nothing is there or at the end."""
        try:
            data = os.read(stream.fileno(), max_bytes)
        except BlockingIOError:
            return 0
        name = self._open[stream]
        if not data:
            self._selector.unregister(stream)
            del self._open[stream]
            return 0
        self._captured[name].add(data)
        if self._output is not None:
            self._output(name, data)
        return len(data)


class HeadTailBuffer:
    """Keeps the beginning and the end of a stream, and cuts the middle above a limit."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self._cut = 0

    def add(self, data: bytes) -> None:
        free_bytes = self._half - len(self._head)
        if free_bytes > 0:
            self._head += data[:free_bytes]
            data = data[free_bytes:]
        self._tail += data
        if len(self._tail) > 2 * self._half:
            self._trim()

    def text(self) -> str:
        self._trim()
        marker = f"\n[... {self._cut} bytes cut ...]\n".encode() if self._cut else b""
        return (self._head + marker + self._tail).decode("utf-8", "replace")

    def _trim(self) -> None:
        excess = len(self._tail) - self._half
        if excess > 0:
            self._cut += excess
            del self._tail[:excess]


def check_run(
    command: Command,
    *,
    env: Mapping[str, str | None] | None = None,
    cwd: str = "",
    timeout: float | None = None,
    stdin: bytes | str | None = None,
    output: OutputCallback | None = None,
    secrets: Mapping[str, str] | Sequence[str] | None = None,
) -> None:
    """Check the arguments of a run before it begins.

    Raises:
        Invalid: If no machine could run them.
    """
    for name, secret in secret_names(secrets).items():
        check_text(**{"a name in secrets": secret})
        if not _VARIABLE.match(name):
            raise Invalid(
                "bad_name",
                f"{name!r} cannot name a variable: give secrets={{'TOKEN': {name!r}}}, say",
            )
    argv_of(command)
    optional(DICT, env=env)
    check_text(cwd=cwd)
    optional(NUMBER, timeout=timeout)
    optional(TEXT_OR_BYTES, stdin=stdin)
    optional(CALLABLE, output=output)
    for name, value in (env or {}).items():
        check_text(**{"a name in env": name})
        optional(TEXT, **{f"env {name}": value})


def secret_names(secrets: Mapping[str, str] | Sequence[str] | None) -> dict[str, str]:
    """Return variable -> name in the vault. For a list, both are the same."""
    if isinstance(secrets, Mapping):
        return dict(secrets)
    return {name: name for name in check_texts("secrets", secrets or [])}


def argv_of(command: Command) -> list[str]:
    """Return the argv of a command, or raise Invalid("bad_command")."""
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    is_list = isinstance(argv, Sequence) and not isinstance(argv, bytes)
    if not is_list or not argv or not all(isinstance(part, str) for part in argv):
        raise Invalid("bad_command", "give a string, or a list of strings with the program first")
    return list(argv)


def relative_cwd(cwd: str) -> str:
    """Return a working directory below the workspace as a normalised relative path.

    Raises:
        Invalid: "bad_cwd", if the path is outside of the workspace.
    """
    plain = os.path.normpath(cwd or ".")
    if plain == ".." or plain.startswith(("/", "../")):
        raise Invalid("bad_cwd", f"cwd {cwd!r} is outside of the workspace: give a path below it")
    return plain


def check_directory(cwd: str | Path) -> None:
    """Raise NotFound or Invalid unless `cwd` is a directory that may be entered."""
    if not os.path.exists(cwd):
        raise NotFound("no_directory", f"no directory {cwd}: make it, or give another cwd")
    if not os.path.isdir(cwd):
        raise Invalid("not_a_directory", f"{cwd} is not a directory: give another cwd")
    if not os.access(cwd, os.X_OK):
        raise Invalid("closed_directory", f"{cwd} may not be entered: give another cwd")


def environ_without_vault_key() -> dict[str, str]:
    """Return this process's environment without the key of the vault.

    Only the hub may have that key.
    """
    return {name: value for name, value in os.environ.items() if name != "ORTET_VAULT_KEY"}


def build_environment(changes: Mapping[str, str | None], mark: str) -> dict[str, str]:
    """Return the environment of a command: that of this process, `changes`, and the run mark."""
    environment = environ_without_vault_key()
    outer = environment.get(RUN_MARK_VARIABLE)
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    # A nested run also keeps the outer mark, so that the outer timeout kills it too.
    environment[RUN_MARK_VARIABLE] = f"{outer}:{mark}" if outer else mark
    return environment


def start_failure_result(program: str, error: OSError, duration: float) -> Result:
    """Return the exit code and message of a shell for a program that cannot be executed."""
    missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    why = "command not found" if missing else (error.strerror or str(error))
    return Result(127 if missing else 126, "", f"{program}: {why}\n", duration)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _capacity(pipe: IO[bytes]) -> int:
    """Return the most bytes that an ended command can have left in a pipe.

    The limit is needed because a background child may write forever.
    """
    if hasattr(fcntl, "F_GETPIPE_SZ"):
        return fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    return 64 * 1024


def _drain(pipes: list[int]) -> None:
    """Read and discard until every writer is gone. A closed pipe would kill a background server."""
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                if not os.read(key.fd, _CHUNK):
                    selector.unregister(key.fd)
                    os.close(key.fd)

"""Long-running programs of a machine, as a client sees them: shells, services, process lists."""

from __future__ import annotations

import time
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from signal import Signals
from typing import Any, Literal

import msgspec

from ortet._util.validation import NUMBER, TEXT_OR_BYTES, optional, require
from ortet.errors import Conflict, Invalid, NotFound, OrtetError

JobKind = Literal["run", "service", "shell"]
Stream = Literal["stdout", "stderr", "output"]
"""`output` is both streams of a service in order of arrival; a terminal has only stdout."""

Ask = Callable[[dict[str, Any], float], dict[str, Any]]
"""Sends a request; the float is the time that its reply may take beyond the usual timeout."""

_INPUT_CHUNK_BYTES = 1 << 19
_REQUEST_WAIT_SECONDS = 20.0  # longest wait of one request; longer waits are repeated


class ProcessInfo(msgspec.Struct, frozen=True):
    """One process of a machine. Process ids are those inside the machine.

    Attributes:
        pid: Process id.
        ppid: Id of the parent process.
        name: Name of the program.
        cmdline: Command line.
        state: State: a letter, as in proc(5).
        rss: Resident memory in bytes.
        started: When it was started, in seconds since 1970.
        job: `JobInfo.id` of the job that it belongs to, or None.
    """

    pid: int
    ppid: int
    name: str
    cmdline: list[str]
    state: str
    rss: int
    started: float
    job: int | None = None


class JobInfo(msgspec.Struct, frozen=True):
    """A program that a client started.

    Attributes:
        id: Number of the job.
        name: Name of the job.
        kind: Kind of the job.
        pid: Process id inside the machine.
        argv: The command.
        cwd: Working directory.
        tty: Rows and columns of its terminal, or None.
        declared: True for a service to start again where processes cannot be restored.
        began: When it was started, in seconds since 1970.
        code: Exit code, or None while it runs.
    """

    id: int
    name: str
    kind: JobKind
    pid: int
    argv: list[str]
    cwd: str
    tty: tuple[int, int] | None
    declared: bool
    began: float
    code: int | None


class StreamChunk(msgspec.Struct, frozen=True):
    """A part of a stream.

    Attributes:
        data: The bytes.
        cursor: Position of the next part.
        missed: Number of bytes before this part that were dropped.
        eof: True if the stream has ended.
        code: Exit code of the job, once it has ended.
    """

    data: bytes
    cursor: int
    missed: int
    eof: bool
    code: int | None


class HookResult(msgspec.Struct, frozen=True):
    """The result of a hook in a copied machine; `code` is None if the hook could not be started."""

    path: str
    code: int | None
    output: str
    timed_out: bool


class Job:
    """A handle for a shell or service.

    It runs until it ends, is killed, or its machine is closed.
    """

    def __init__(self, ask: Ask, *, id: int, name: str, pid: int) -> None:
        self.id = id
        self.name = name
        self.pid = pid
        """The pid inside the machine."""
        self._ask = ask

    def read(
        self,
        cursor: int = 0,
        wait: float = 0.0,
        *,
        stream: Stream = "stdout",
        most: int | None = None,
    ) -> StreamChunk:
        """Return the output after `cursor`.

        Waits up to `wait` seconds until there is output or the job ends. The machine keeps the last
        megabyte of unread output.
        """
        require(NUMBER, wait=wait)
        request = {"do": "read", "id": self.id, "stream": stream, "cursor": cursor, "most": most}
        until = time.monotonic() + wait
        while True:
            reply = self._request(
                request, min(max(until - time.monotonic(), 0.0), _REQUEST_WAIT_SECONDS)
            )
            over = reply["data"] or reply["eof"] or reply["code"] is not None
            if over or time.monotonic() >= until:
                return StreamChunk(
                    a2b_base64(reply["data"]),
                    reply["cursor"],
                    reply["missed"],
                    reply["eof"],
                    shell_exit_code(reply["code"]),
                )

    def write(self, data: bytes | str, *, eof: bool = False, wait: float = 30.0) -> None:
        """Write to the job's input; `eof` closes it, at a terminal with control-D.

        Raises Conflict("input_full") if the job does not read all of it within `wait` seconds. The
        part that was accepted stays accepted.
        """
        require(NUMBER, wait=wait)
        require(TEXT_OR_BYTES, data=data)
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogateescape")
        until = time.monotonic() + wait
        for offset in range(0, len(data), _INPUT_CHUNK_BYTES):
            self._feed(data[offset : offset + _INPUT_CHUNK_BYTES], until)
        if eof:
            self._request({"do": "write", "id": self.id, "eof": True})

    def _feed(self, rest: bytes, deadline: float) -> None:
        while rest:
            left = min(max(deadline - time.monotonic(), 0.0), _REQUEST_WAIT_SECONDS)
            reply = self._request({"do": "write", "id": self.id, "data": encode_base64(rest)}, left)
            rest = rest[len(rest) - reply["left"] :]
            if rest and time.monotonic() >= deadline:
                raise Conflict(
                    "input_full",
                    f"{self.name} does not read its input: read what it says, or kill it",
                )

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the job's terminal."""
        self._request({"do": "resize", "id": self.id, "rows": rows, "columns": columns})

    def signal(self, number: int, *, group: bool = True) -> bool:
        """Send a signal to the job's process group, or only to its first process.

        Returns False if the job has ended.
        """
        if number not in set(Signals):
            raise Invalid("bad_signal", f"{number!r} is no signal: give one of signal.Signals")
        request = {"do": "signal", "id": self.id, "signal": int(number), "group": group}
        return bool(self._request(request)["sent"])

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the exit code, 128 + n after signal n.

        Returns None if the job still runs at the time-out.
        """
        optional(NUMBER, timeout=timeout)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _REQUEST_WAIT_SECONDS if until is None else max(until - time.monotonic(), 0.0)
            reply = self._request({"do": "wait", "id": self.id}, min(left, _REQUEST_WAIT_SECONDS))
            if reply["code"] is not None or (until is not None and time.monotonic() >= until):
                return shell_exit_code(reply["code"])

    def kill(self) -> None:
        """Kill the job and all processes that it started."""
        self._request({"do": "kill", "id": self.id}, _REQUEST_WAIT_SECONDS)

    def logs(self, last: int | None = None) -> bytes:
        """Return the last output, stdout and stderr in order of arrival.

        Returns at most `last` bytes, or everything that is kept.
        """
        return a2b_base64(self._request({"do": "logs", "id": self.id, "last": last})["data"])

    def forget(self) -> None:
        """Discard the output of an ended job and free its name."""
        self._request({"do": "forget", "id": self.id})

    def _request(self, request: dict[str, Any], wait: float = 0.0) -> dict[str, Any]:
        reply = self._ask({**request, "wait": wait}, wait)
        if "bad" in reply or "error" in reply:
            raise reply_error(reply, self.name)
        return reply


def check_port(number: int) -> None:
    """Raise Invalid("bad_port") unless `number` is a port number."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 1 << 16:
        raise Invalid("bad_port", f"{number!r} is no port: give a number from 1 to 65535")


def shell_exit_code(code: int | None) -> int | None:
    """Convert an exit code to a shell's form: signal n becomes 128 + n."""
    return 128 - code if code is not None and code < 0 else code


def encode_base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def reply_error(reply: dict[str, Any], name: str) -> OrtetError:
    """Return the error for a request that pid 1 of a machine refused."""
    kind = reply.get("error")
    if kind == "no_job":
        return NotFound(
            "no_job",
            f"there is no {name!r} in this machine: jobs() and `ortet ps` list what there is",
        )
    if kind == "name_taken":
        return Conflict(
            "name_taken", f"a {name!r} is running: use it, kill it first, or take another name"
        )
    if kind == "alive":
        return Conflict("job_alive", f"{name!r} is running: kill it first")
    if kind == "no_input":
        return Invalid("no_input", f"{name!r} was started without an input: start it with one")
    why = reply.get("bad") or kind
    return Invalid("bad_request", f"{name!r}: {why}: correct what was asked")

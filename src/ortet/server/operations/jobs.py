"""Programs that keep running in a machine: services and shells, their output and their end."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Garbled
from signal import Signals
from typing import Annotated, Literal

import msgspec

from ortet.errors import Invalid
from ortet.machines.control.client import InitClient
from ortet.machines.jobs import Job, JobInfo, ProcessInfo
from ortet.server.auth.tokens import Caller
from ortet.server.operations.machine import Command, Env
from ortet.server.operations.registry import operation
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import Number, OperationRequest
from ortet.server.session_pool.machine_access import ask_job, ask_machine
from ortet.server.session_pool.pool import SessionPool
from ortet.server.streaming.output import incomplete_utf8_length
from ortet.sessions.session import Session

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Lines = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Wait = Annotated[float, msgspec.Meta(ge=0, le=60)]
Encoding = Literal["text", "base64"]
_MAX_OUTPUT_BYTES = 1 << 20
_KILL_WAIT_SECONDS = 20.0


class Spawn(OperationRequest, frozen=True):
    """`command`: text runs in sh -c, a list is executed directly. `stdin`: give the program an
    input that can be written to.
    """

    name: Name
    command: Command
    why: str = ""
    cwd: str = ""
    env: Env = {}
    stdin: bool = False


@operation("POST", "/sessions/{session}/jobs", status=201, needs_host=True)
def spawn(session: Session, ask: Spawn) -> JobInfo:
    """Start a service. A service is a named program that keeps running. It is part of a commit if
    the engine saves processes.
    """
    job = session.spawn(
        ask.name, ask.command, why=ask.why, cwd=ask.cwd, env=ask.env, stdin=ask.stdin
    )
    return _info(session, job)


class Shell(OperationRequest, frozen=True):
    name: Name = "main"
    rows: Lines = 24
    cols: Lines = 80
    why: str = ""


@operation("POST", "/sessions/{session}/shells", status=201, needs_host=True)
def shell(session: Session, ask: Shell) -> JobInfo:
    """Return the shell of this name, with a terminal of its own. The shell is started at first
    use.
    """
    return _info(session, session.shell(ask.name, why=ask.why, size=(ask.rows, ask.cols)))


def _info(session: Session, job: Job) -> JobInfo:
    return next(one for one in session.programs.jobs() if one.id == job.id)


class JobsRequest(Paged, frozen=True):
    session: str = ""


@operation("GET", "/sessions/{session}/jobs", filtered=True)
def list_jobs(pool: SessionPool, ask: JobsRequest, caller: Caller) -> Page[JobInfo]:
    """List the services and shells of the machine that is open in this server, running or ended."""
    row = pool.row(ask.session, caller.sees)
    running = ask_machine(pool, row, lambda inside: [job for job in inside.jobs() if job.name])
    return paginate(running, ask, lambda job: job.id)


@operation("GET", "/sessions/{session}/processes", filtered=True)
def list_processes(pool: SessionPool, ask: JobsRequest, caller: Caller) -> Page[ProcessInfo]:
    """List all processes of the machine that is open in this server. The process ids are those
    inside the machine.
    """
    row = pool.row(ask.session, caller.sees)
    processes = ask_machine(pool, row, lambda inside: inside.ps())
    return paginate(processes, ask, lambda one: one.pid)


class OfJob(OperationRequest, frozen=True):
    session: str
    name: str


@operation("GET", "/sessions/{session}/jobs/{name}", filtered=True)
def show_job(pool: SessionPool, ask: OfJob, caller: Caller) -> JobInfo:
    """Show a service or shell, running or ended."""
    row = pool.row(ask.session, caller.sees)

    def look(inside: InitClient) -> JobInfo:
        number = inside.job(ask.name).id
        return next(one for one in inside.jobs() if one.id == number)

    return ask_machine(pool, row, look)


class ReadOutput(OfJob, frozen=True):
    """`cursor`: the position of the first byte. `most`: the maximum number of bytes. `wait`: the
    number of seconds to wait for the first byte. `stream`: one of the two streams, or both in the
    order of writing (output). A terminal has only stdout.
    """

    cursor: Number = 0
    wait: Wait = 0.0
    most: Annotated[int, msgspec.Meta(ge=1, le=_MAX_OUTPUT_BYTES)] = 1 << 16
    stream: Literal["stdout", "stderr", "output"] | None = None
    encoding: Encoding = "text"


class Output(msgspec.Struct, frozen=True):
    """A part of an output. `cursor`: the position after this part. `missed`: the number of bytes
    before this part that are lost. `eof`: no more output will follow. `code`: the exit code, after
    the program ended. In text, bytes that are not UTF-8 are replaced.
    """

    data: str
    cursor: int
    missed: int
    eof: bool
    code: int | None


@operation("GET", "/sessions/{session}/jobs/{name}/output", filtered=True)
def read_output(pool: SessionPool, ask: ReadOutput, caller: Caller) -> Output:
    """Read a part of the output of a service or shell. The last megabyte is kept."""
    row = pool.row(ask.session, caller.sees)
    stream = ask.stream
    if stream is None:
        about = show_job(pool, OfJob(ask.session, ask.name), caller)
        stream = "output" if about.tty is None else "stdout"
    piece = ask_job(
        pool,
        row,
        ask.name,
        lambda job: job.read(ask.cursor, ask.wait, stream=stream, most=ask.most),
    )
    data, rest = piece.data, 0
    if ask.encoding == "text" and not piece.eof:
        rest = incomplete_utf8_length(data)
        # If `most` is smaller than one character, return its bytes instead of waiting forever.
        rest = 0 if rest == len(data) == ask.most else rest
        data = data[: len(data) - rest]
    shown = b64encode(data) if ask.encoding == "base64" else data
    return Output(
        shown.decode("utf-8", "replace"), piece.cursor - rest, piece.missed, piece.eof, piece.code
    )


class ReadLogs(OfJob, frozen=True):
    """`last`: the number of bytes from the end; without it, all bytes that are kept."""

    last: Annotated[int, msgspec.Meta(ge=0, le=_MAX_OUTPUT_BYTES)] | None = None


class Logs(msgspec.Struct, frozen=True):
    text: str


@operation("GET", "/sessions/{session}/jobs/{name}/logs", filtered=True)
def logs(pool: SessionPool, ask: ReadLogs, caller: Caller) -> Logs:
    """Return the output of a service or shell, both streams in the order of writing, as far as it
    is kept.
    """
    row = pool.row(ask.session, caller.sees)
    data = ask_job(pool, row, ask.name, lambda job: job.logs(ask.last))
    return Logs(data.decode("utf-8", "replace"))


class Write(OfJob, frozen=True):
    """`eof`: close the input; at a terminal, send control-D. `wait`: the number of seconds in which
    the program must read all of the data. Data that it has read stays read.
    """

    data: Annotated[str, msgspec.Meta(max_length=8 << 20)] = ""
    encoding: Encoding = "text"
    eof: bool = False
    wait: Wait = 30.0


class Wrote(msgspec.Struct, frozen=True):
    size: int


@operation("POST", "/sessions/{session}/jobs/{name}/input", filtered=True, needs_host=True)
def write_input(pool: SessionPool, ask: Write, caller: Caller) -> Wrote:
    """Write to the terminal of a shell, or to the input of a service that was started with one."""
    row = pool.row(ask.session, caller.sees)
    data = ask.data.encode() if ask.encoding == "text" else _bytes(ask.data)
    ask_job(pool, row, ask.name, lambda job: job.write(data, eof=ask.eof, wait=ask.wait))
    return Wrote(len(data))


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Garbled, ValueError) as error:
        raise Invalid("bad_base64", f"data is not base64 ({error}): correct it") from error


class Resize(OfJob, frozen=True):
    rows: Lines
    cols: Lines


class Done(msgspec.Struct, frozen=True):
    """`done`: false if the program had ended before."""

    done: bool = True


@operation("POST", "/sessions/{session}/jobs/{name}/resize", filtered=True, needs_host=True)
def resize(pool: SessionPool, ask: Resize, caller: Caller) -> Done:
    """Change the size of a shell's terminal."""
    row = pool.row(ask.session, caller.sees)
    ask_job(pool, row, ask.name, lambda job: job.resize(ask.rows, ask.cols))
    return Done()


class SignalJobRequest(OfJob, frozen=True):
    """`signal`: a name such as TERM or SIGTERM, or a number. `group`: send it to the whole process
    group, not only to the first process.
    """

    signal: str | int = "TERM"
    group: bool = True


@operation("POST", "/sessions/{session}/jobs/{name}/signal", filtered=True, needs_host=True)
def send_signal(pool: SessionPool, ask: SignalJobRequest, caller: Caller) -> Done:
    """Send a signal to a service or shell."""
    row, number = pool.row(ask.session, caller.sees), _number(ask.signal)
    return Done(ask_job(pool, row, ask.name, lambda job: job.signal(number, group=ask.group)))


def _number(name_or_number: str | int) -> int:
    try:
        if isinstance(name_or_number, int):
            return Signals(name_or_number)
        return Signals["SIG" + name_or_number.upper().removeprefix("SIG")]
    except (KeyError, ValueError) as error:
        raise Invalid(
            "bad_signal",
            f"{str(name_or_number)[:40]!r} is no signal: give a name as TERM, or its number",
        ) from error


class JobEnded(msgspec.Struct, frozen=True):
    """`code`: the exit code, 128 + n after signal n, or null while the program runs."""

    code: int | None


class AwaitJob(OfJob, frozen=True):
    """`timeout`: the number of seconds to wait."""

    timeout: Wait = 30.0


@operation("GET", "/sessions/{session}/jobs/{name}/wait", filtered=True)
def wait_for(pool: SessionPool, ask: AwaitJob, caller: Caller) -> JobEnded:
    """Wait for the end of a service or shell, and return its exit code."""
    row = pool.row(ask.session, caller.sees)
    return JobEnded(ask_job(pool, row, ask.name, lambda job: job.wait(ask.timeout)))


class Stop(OfJob, frozen=True):
    """`grace`: the number of seconds in which the program may end by itself. After that, the
    program and all processes that it started are killed.
    """

    grace: Wait = 5.0


@operation("POST", "/sessions/{session}/jobs/{name}/stop", filtered=True, needs_host=True)
def stop_job(pool: SessionPool, ask: Stop, caller: Caller) -> JobEnded:
    """End a service or shell."""
    row = pool.row(ask.session, caller.sees)

    def end(job: Job) -> int | None:
        code = job.wait(ask.grace) if ask.grace and job.signal(Signals.SIGTERM) else None
        job.kill()
        return job.wait(_KILL_WAIT_SECONDS) if code is None else code

    return JobEnded(ask_job(pool, row, ask.name, end))


@operation("DELETE", "/sessions/{session}/jobs/{name}", filtered=True, needs_host=True)
def forget_job(pool: SessionPool, ask: OfJob, caller: Caller) -> Done:
    """Delete the output of a service or shell that has ended, and release its name."""
    row = pool.row(ask.session, caller.sees)
    ask_job(pool, row, ask.name, lambda job: job.forget())
    return Done()

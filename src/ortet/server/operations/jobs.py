"""Programs that go on in a machine: services and shells, what they write, and their end."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Garbled
from signal import Signals
from typing import Annotated, Literal

import msgspec

from ortet.errors import Invalid
from ortet.machines.control.client import Indoors
from ortet.machines.control.jobs import Job, JobInfo, Process
from ortet.server.auth.tokens import Caller
from ortet.server.operations.machine import Command, Env
from ortet.server.operations.registry import operation
from ortet.server.paging import Page, Paged, page_of
from ortet.server.schemas import Ask, Number
from ortet.server.session_pool.machine_access import asked, of_job
from ortet.server.session_pool.pool import Rooms
from ortet.server.streaming.stream_output import unfinished
from ortet.sessions.session import Session

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Lines = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Wait = Annotated[float, msgspec.Meta(ge=0, le=60)]
Encoding = Literal["text", "base64"]
_MOST = 1 << 20
_KILLED = 20.0


class Spawn(Ask, frozen=True):
    """A `command` that is text goes to sh -c, a list is executed as it is. `stdin`: it is to have
    an input, which can be written to."""

    name: Name
    command: Command
    why: str = ""
    cwd: str = ""
    env: Env = {}
    stdin: bool = False


@operation("POST", "/sessions/{session}/jobs", status=201, runs=True)
def spawn(session: Session, ask: Spawn) -> JobInfo:
    """Start a service: a program that goes on under a name, and is part of a commit where the
    engine carries processes."""
    job = session.spawn(
        ask.name, ask.command, why=ask.why, cwd=ask.cwd, env=ask.env, stdin=ask.stdin
    )
    return _info(session, job)


class Shell(Ask, frozen=True):
    name: Name = "main"
    rows: Lines = 24
    cols: Lines = 80
    why: str = ""


@operation("POST", "/sessions/{session}/shells", status=201, runs=True)
def shell(session: Session, ask: Shell) -> JobInfo:
    """The shell of this name, at a terminal of its own; started at first use."""
    return _info(session, session.shell(ask.name, why=ask.why, size=(ask.rows, ask.cols)))


def _info(session: Session, job: Job) -> JobInfo:
    return next(one for one in session.jobs() if one.id == job.id)


class OfSession(Paged, frozen=True):
    session: str = ""


@operation("GET", "/sessions/{session}/jobs", filtered=True)
def list_jobs(rooms: Rooms, ask: OfSession, caller: Caller) -> Page[JobInfo]:
    """Services and shells of the machine that lives in this server, running or ended."""
    row = rooms.row(ask.session, caller.sees)
    found = asked(rooms, row, lambda inside: [job for job in inside.jobs() if job.name])
    return page_of(found, ask, lambda job: job.id)


@operation("GET", "/sessions/{session}/processes", filtered=True)
def list_processes(rooms: Rooms, ask: OfSession, caller: Caller) -> Page[Process]:
    """Every process of the machine that lives in this server; their numbers are its own."""
    row = rooms.row(ask.session, caller.sees)
    found = asked(rooms, row, lambda inside: inside.ps())
    return page_of(found, ask, lambda one: one.pid)


class OfJob(Ask, frozen=True):
    session: str
    name: str


@operation("GET", "/sessions/{session}/jobs/{name}", filtered=True)
def show_job(rooms: Rooms, ask: OfJob, caller: Caller) -> JobInfo:
    """One service or shell, running or ended."""
    row = rooms.row(ask.session, caller.sees)

    def look(inside: Indoors) -> JobInfo:
        number = inside.job(ask.name).id
        return next(one for one in inside.jobs() if one.id == number)

    return asked(rooms, row, look)


class ReadOutput(OfJob, frozen=True):
    """What came behind byte `cursor`, at most `most` of them; with `wait`, so many seconds for the
    first. `stream`: both as they came (output), or one of them; a terminal has only stdout."""

    cursor: Number = 0
    wait: Wait = 0.0
    most: Annotated[int, msgspec.Meta(ge=1, le=_MOST)] = 1 << 16
    stream: Literal["stdout", "stderr", "output"] | None = None
    encoding: Encoding = "text"


class Output(msgspec.Struct, frozen=True):
    """A part of an output. `cursor` is where the next begins; `missed` bytes before this are gone;
    `eof`: nothing will come any more; `code` is the exit code, once it has ended. In text, what is
    no UTF-8 is replaced."""

    data: str
    cursor: int
    missed: int
    eof: bool
    code: int | None


@operation("GET", "/sessions/{session}/jobs/{name}/output", filtered=True)
def read_output(rooms: Rooms, ask: ReadOutput, caller: Caller) -> Output:
    """A part of what a service or shell wrote; the last megabyte is kept."""
    row = rooms.row(ask.session, caller.sees)
    stream = ask.stream
    if stream is None:
        about = show_job(rooms, OfJob(ask.session, ask.name), caller)
        stream = "output" if about.tty is None else "stdout"
    piece = of_job(
        rooms,
        row,
        ask.name,
        lambda job: job.read(ask.cursor, ask.wait, stream=stream, most=ask.most),
    )
    data, rest = piece.data, 0
    if ask.encoding == "text" and not piece.eof:
        rest = unfinished(data)
        # a single character that is cut by `most` must not be waited for forever
        rest = 0 if rest == len(data) == ask.most else rest
        data = data[: len(data) - rest]
    shown = b64encode(data) if ask.encoding == "base64" else data
    return Output(
        shown.decode("utf-8", "replace"), piece.cursor - rest, piece.missed, piece.eof, piece.code
    )


class ReadLogs(OfJob, frozen=True):
    """`last`: so many bytes from the end; all that is kept without it."""

    last: Annotated[int, msgspec.Meta(ge=0, le=_MOST)] | None = None


class Logs(msgspec.Struct, frozen=True):
    text: str


@operation("GET", "/sessions/{session}/jobs/{name}/logs", filtered=True)
def logs(rooms: Rooms, ask: ReadLogs, caller: Caller) -> Logs:
    """What a service or shell wrote, both streams as they came, as far as it is kept."""
    row = rooms.row(ask.session, caller.sees)
    data = of_job(rooms, row, ask.name, lambda job: job.logs(ask.last))
    return Logs(data.decode("utf-8", "replace"))


class Write(OfJob, frozen=True):
    """`eof` ends its input, at a terminal by control-D. `wait`: seconds in which it must have taken
    it all; what it did take stays taken."""

    data: Annotated[str, msgspec.Meta(max_length=8 << 20)] = ""
    encoding: Encoding = "text"
    eof: bool = False
    wait: Wait = 30.0


class Wrote(msgspec.Struct, frozen=True):
    size: int


@operation("POST", "/sessions/{session}/jobs/{name}/input", filtered=True, runs=True)
def write_input(rooms: Rooms, ask: Write, caller: Caller) -> Wrote:
    """Type, or feed a service that was started with an input."""
    row = rooms.row(ask.session, caller.sees)
    data = ask.data.encode() if ask.encoding == "text" else _bytes(ask.data)
    of_job(rooms, row, ask.name, lambda job: job.write(data, eof=ask.eof, wait=ask.wait))
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
    """`done` is false when it had ended before."""

    done: bool = True


@operation("POST", "/sessions/{session}/jobs/{name}/resize", filtered=True, runs=True)
def resize(rooms: Rooms, ask: Resize, caller: Caller) -> Done:
    """Another size of a shell's terminal."""
    row = rooms.row(ask.session, caller.sees)
    of_job(rooms, row, ask.name, lambda job: job.resize(ask.rows, ask.cols))
    return Done()


class Signal(OfJob, frozen=True):
    """`signal` by its name, as TERM or SIGTERM, or its number; to its whole `group`, or to its
    first process alone."""

    signal: str | int = "TERM"
    group: bool = True


@operation("POST", "/sessions/{session}/jobs/{name}/signal", filtered=True, runs=True)
def send_signal(rooms: Rooms, ask: Signal, caller: Caller) -> Done:
    """Send a signal to a service or shell."""
    row, number = rooms.row(ask.session, caller.sees), _number(ask.signal)
    return Done(of_job(rooms, row, ask.name, lambda job: job.signal(number, group=ask.group)))


def _number(asked_for: str | int) -> int:
    try:
        if isinstance(asked_for, int):
            return Signals(asked_for)
        return Signals["SIG" + asked_for.upper().removeprefix("SIG")]
    except (KeyError, ValueError) as error:
        raise Invalid(
            "bad_signal",
            f"{str(asked_for)[:40]!r} is no signal: give a name as TERM, or its number",
        ) from error


class Ended(msgspec.Struct, frozen=True):
    """`code` is 128 + n after signal n; null: it still runs."""

    code: int | None


class AwaitJob(OfJob, frozen=True):
    """`timeout` is in seconds."""

    timeout: Wait = 30.0


@operation("GET", "/sessions/{session}/jobs/{name}/wait", filtered=True)
def wait_for(rooms: Rooms, ask: AwaitJob, caller: Caller) -> Ended:
    """Its exit code, waited for a while."""
    row = rooms.row(ask.session, caller.sees)
    return Ended(of_job(rooms, row, ask.name, lambda job: job.wait(ask.timeout)))


class Stop(OfJob, frozen=True):
    """It is asked to end, and killed with all that it started when it has not within `grace`
    seconds."""

    grace: Wait = 5.0


@operation("POST", "/sessions/{session}/jobs/{name}/stop", filtered=True, runs=True)
def stop_job(rooms: Rooms, ask: Stop, caller: Caller) -> Ended:
    """End a service or shell."""
    row = rooms.row(ask.session, caller.sees)

    def end(job: Job) -> int | None:
        code = job.wait(ask.grace) if ask.grace and job.signal(Signals.SIGTERM) else None
        job.kill()
        return job.wait(_KILLED) if code is None else code

    return Ended(of_job(rooms, row, ask.name, end))


@operation("DELETE", "/sessions/{session}/jobs/{name}", filtered=True, runs=True)
def forget_job(rooms: Rooms, ask: OfJob, caller: Caller) -> Done:
    """Let go of the output of one that has ended, and of its name."""
    row = rooms.row(ask.session, caller.sees)
    of_job(rooms, row, ask.name, lambda job: job.forget())
    return Done()

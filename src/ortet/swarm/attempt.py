"""Runs one attempt in its own process: fork, run the task, score, commit, record the result.

The result is recorded only if no other process has taken over the attempt.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ortet._util.codec import encode
from ortet.backends.base import RowChange
from ortet.errors import Conflict, OrtetError, Refused
from ortet.ids import Oid
from ortet.sessions.actions.budget import reserve_share
from ortet.sessions.history.fork_session import fork_named
from ortet.sessions.history.forking import NamedForks
from ortet.sessions.history.swarm_results import pause_with
from ortet.sessions.swarm_api import swarm_topic
from ortet.sessions.table import SessionRow
from ortet.swarm.records import AttemptFork, AttemptRow, SwarmRecords

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.machines.base import Result
    from ortet.sessions.session import Session

_MAX_VALUE_BYTES = 64 * 1024
"""Larger values are not recorded."""

_MAX_ERROR_CHARS = 2000


class AttemptJob(msgspec.Struct, frozen=True):
    """The parameters of an attempt. `version` is the row version that it may write."""

    root: str
    session: str  # id of the session to fork
    swarm: str  # id of the swarm
    name: str
    point: str
    i: int
    version: int
    tail: str  # last part of the fork's name
    mark: str
    slot: int
    scored: bool  # a missing score is a failure
    budget: dict[str, float] = {}


class _AttemptFailed(Exception):
    """An attempt that has no score, with the reason."""

    def __init__(self, reason: str, error: str) -> None:
        super().__init__(error)
        self.reason = reason


def run_attempt(hub: Hub, job: AttemptJob, task: Any, score: Any) -> None:
    """Run an attempt and record its result. Every exception in it is recorded as a failure."""
    began = time.monotonic()
    book = SwarmRecords(hub.catalog, job.session, job.swarm)
    row = book.attempt(job.i)
    if row.version != job.version:
        return  # another process took over the attempt before it started
    session: Session | None = None
    try:
        session, row = _fork(hub, book, row, job)
        os.environ["ORTET_SESSION"] = session.name
        value, score_ = _run_task(session, job, task, score)
        _commit(session, f"swarm {job.name}: attempt {job.i}")
        row = replace(row, state="done", score=score_, value=_to_plain_value(value))
    except Exception as error:
        row = replace(row, state="failed", reason=_reason(error), error=_describe_error(error))
        if session is not None:
            with suppress(OrtetError):
                _commit(session, f"swarm {job.name}: attempt {job.i} failed")
    if session is not None:
        head = hub.catalog.head(f"branch:{session.internals.row.branch}")
        row = replace(row, commit=head.oid.hex() if head else job.point)
    row = replace(row, seconds=time.monotonic() - began)
    with suppress(Conflict):
        if session is None or session.internals.held_lease.is_released:
            book.write_attempt(row)
        else:
            pause_with(session, book.attempt_change(row))


def _fork(
    hub: Hub, records: SwarmRecords, row: AttemptRow, job: AttemptJob
) -> tuple[Session, AttemptRow]:
    """Fork the session and record the fork in the attempt row, in one transaction."""
    parent = hub.get(job.session)

    def rows(forks: Sequence[SessionRow]) -> list[RowChange]:
        now = records.attempt(job.i)
        if now.version != job.version:
            raise Conflict("row_moved", "another process makes this attempt")
        fork = AttemptFork(forks[0].id, forks[0].name, forks[0].branch)
        running = replace(row, state="running", forks=[*row.forks, fork])
        share = reserve_share(hub.catalog, forks[0], job.budget) if job.budget else []
        return [records.attempt_change(running), *share]

    named = NamedForks([job.tail], rows)
    (session,) = fork_named(
        hub.internals.session_manager, parent, Oid(bytes.fromhex(job.point)), named
    )
    hub.store.notify(swarm_topic(job.session))
    return session, records.attempt(job.i)


def _run_task(session: Session, job: AttemptJob, task: Any, score: Any) -> tuple[Any, float | None]:
    """Run the task. Return its value and its score."""
    if callable(task):
        value = task(session, job.i)
        result = None
    else:
        result = session.run(task, why=f"attempt {job.i} of swarm {job.name}")
        value = result.exit_code
        if result.exit_code and score is not None:
            raise _AttemptFailed(
                "error", f"exit code {result.exit_code}: {_last_line(result.stderr)}"
            )
    if score is None:
        number = value if result is None else _printed_number(result)
        if result is not None and result.exit_code:
            raise _AttemptFailed(
                "error", f"exit code {result.exit_code}: {_last_line(result.stderr)}"
            )
        if number is None and not job.scored:
            return value, None
        return value, _check_score(number, "what the task returned")
    try:
        if callable(score):
            return value, _check_score(score(session, job.i), "the score")
        return value, _check_score(_command_score(session.run(score, why="score")), "the score")
    except _AttemptFailed:
        raise
    except Exception as error:
        raise _AttemptFailed("score", f"no score: {_describe_error(error)}") from error


def _command_score(result: Result) -> float:
    """Return the number on the last line of output, or minus the exit code: 0 is best."""
    if result.exit_code in (126, 127):
        raise _AttemptFailed("score", f"the score command was not run: {_last_line(result.stderr)}")
    printed = _printed_number(result)
    if result.exit_code == 0:
        return printed
    if printed:
        raise _AttemptFailed("score", f"exit code {result.exit_code} behind the number {printed:g}")
    return -float(result.exit_code)


def _printed_number(result: Result) -> float:
    """Return the number on the last line, or 0 if it is not a number."""
    with suppress(ValueError):
        return float(_last_line(result.stdout))
    return 0.0


def _check_score(value: Any, what: str) -> float:
    if hasattr(value, "item"):  # scalars of numpy, torch and similar libraries
        value = value.item()
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise _AttemptFailed(
            "score",
            f"{what} is {value!r}: return a finite number, higher is better"[:_MAX_ERROR_CHARS],
        )
    return float(value)


def _commit(session: Session, message: str) -> None:
    if not session.internals.held_lease.is_released:
        session.commit(message)


def _to_plain_value(value: Any) -> Any:
    """Return a value that can be recorded, or None if this one cannot be."""
    with suppress(Exception):
        plain = msgspec.to_builtins(value)
        return plain if len(encode(plain)) <= _MAX_VALUE_BYTES else None
    return None


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].strip()[:_MAX_ERROR_CHARS]


def _reason(error: Exception) -> str:
    if isinstance(error, _AttemptFailed):
        return error.reason
    return "budget" if isinstance(error, Refused) and error.kind == "budget_spent" else "error"


def _describe_error(error: Exception) -> str:
    text = (
        str(error)
        if isinstance(error, OrtetError | _AttemptFailed)
        else f"{type(error).__name__}: {error}"
    )
    return text.encode("utf-8", "replace").decode()[:_MAX_ERROR_CHARS]

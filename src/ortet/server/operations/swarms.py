"""Swarms: many attempts from one commit. The server runs them in the background and keeps the
best.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ortet.errors import Conflict, NotFound
from ortet.history.commits import CommitInfo
from ortet.hub.hub import drop_fork, hub_of
from ortet.server.auth.tokens import Caller
from ortet.server.operations.machine import Command, Seconds
from ortet.server.operations.registry import operation
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import Number, OperationRequest, Ref
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.sessions.swarm_api import (
    Attempt,
    ProgressCallback,
    SwarmResult,
    SwarmStopSignal,
    swarm_topic,
)
from ortet.store.lease import is_lease_held
from ortet.workspaces.results import RestoreResult

Name = Annotated[
    str, msgspec.Meta(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$")
]
Times = Annotated[int, msgspec.Meta(ge=1, le=1000)]
AtOnce = Annotated[int, msgspec.Meta(ge=1, le=64)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Score = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]


class SwarmInfo(SwarmResult, frozen=True):
    """A swarm with its present state. `driven`: a process runs the swarm. A swarm that is neither
    finished nor driven continues when it is resumed.
    """

    driven: bool = False


def info_of(view: SessionReader, result: SwarmResult) -> SwarmInfo:
    hub, topic = hub_of(view), swarm_topic(view.id)
    driven = result.state != "finished" and is_lease_held(
        hub.catalog, topic, hub.store.host, hub.clock.now_ns()
    )
    return SwarmInfo(**msgspec.structs.asdict(result), driven=driven)


class BeginSwarm(OperationRequest, frozen=True):
    """`task` and `score`: commands. The variable ORTET_ATTEMPT has the number of the attempt, from
    0. The score is the number that the command prints last, otherwise its exit code, where 0 is
    best. `keep`: 1 adopts the best attempt, a larger number keeps the best attempts as sessions, 0
    keeps none; merge or merge:K merges them. `budget`: the share of each attempt. `timeout`: the
    seconds of each attempt. `stop_when`: end all attempts when one has this score. `at`: the commit
    to begin at. If `name` and the other fields are those of an interrupted swarm, that swarm
    continues; attempts that were `interrupted` are repeated, or count as failed. `on`: ray runs
    attempts on the nodes of the cluster that the server was started with, each with the resources
    that it `needs`.
    """

    session: str
    task: Command
    score: Command | None = None
    n: Times = 8
    parallel: AtOnce = 2
    keep: Number | str = 1
    budget: dict[str, Amount] | None = None
    stop_when: Score | None = None
    timeout: Seconds | None = None
    harvest: bool = False
    losers: Literal["drop", "keep"] = "drop"
    name: Name | None = None
    at: Ref | None = None
    interrupted: Literal["again", "count"] = "again"
    on: str | None = None
    needs: dict[str, Amount] | None = None


@operation("POST", "/sessions/{session}/swarms", status=202, filtered=True, needs_host=True)
def begin_swarm(pool: SessionPool, ask: BeginSwarm, caller: Caller) -> SwarmInfo:
    """Begin a swarm. The answer comes when its first attempts run. Until the swarm is finished, its
    session can be read but not opened for writing.
    """
    options = msgspec.structs.asdict(ask)
    return _start_swarm(pool, options.pop("session"), caller, options)


class ResumeSwarm(OperationRequest, frozen=True):
    """`on` and `needs`: where the remaining attempts run, whatever was used before."""

    session: str
    name: str
    parallel: AtOnce = 2
    stop_when: Score | None = None
    timeout: Seconds | None = None
    interrupted: Literal["again", "count"] = "again"
    on: str | None = None
    needs: dict[str, Amount] | None = None


@operation(
    "POST", "/sessions/{session}/swarms/{name}/resume", status=202, filtered=True, needs_host=True
)
def resume_swarm(pool: SessionPool, ask: ResumeSwarm, caller: Caller) -> SwarmInfo:
    """Continue a swarm whose server was killed or stopped. Finished attempts are not repeated."""
    options = msgspec.structs.asdict(ask)
    return _start_swarm(pool, options.pop("session"), caller, options)


def _start_swarm(
    pool: SessionPool, session: str, caller: Caller, options: dict[str, Any]
) -> SwarmInfo:
    row = pool.row(session, caller.sees)
    options["on"] = pool.swarm_jobs.resolve_target(options["on"])

    def run(halt: SwarmStopSignal, progress: ProgressCallback) -> SwarmResult:
        with pool.open_session(row) as ours:
            return ours.swarm(**options, halt=halt, progress=progress)

    begun = pool.swarm_jobs.start(row.id, run)
    with pool.hub() as hub:
        return info_of(hub.get(row.id), begun)


class OfSwarm(OperationRequest, frozen=True):
    session: str
    name: str


@operation("GET", "/sessions/{session}/swarms")
def list_swarms(view: SessionReader, ask: Paged) -> Page[SwarmInfo]:
    """List the swarms of a session, the oldest first."""
    results = hub_of(view).swarms.all(view)
    return paginate(results, ask, lambda one: one.name).map_items(lambda one: info_of(view, one))


class NamedSwarm(OperationRequest, frozen=True):
    name: str


@operation("GET", "/sessions/{session}/swarms/{name}")
def show_swarm(view: SessionReader, ask: NamedSwarm) -> SwarmInfo:
    """Show a swarm with its attempts."""
    return info_of(view, hub_of(view).swarms.get(view, ask.name))


@operation("POST", "/sessions/{session}/swarms/{name}/stop", filtered=True, needs_host=True)
def stop_swarm(pool: SessionPool, ask: OfSwarm, caller: Caller) -> SwarmInfo:
    """Stop a swarm: end its running attempts and begin no others. The best finished attempt is kept
    as the swarm asks. The swarm is finished a moment later.
    """
    row = pool.row(ask.session, caller.sees)
    is_stopping = pool.swarm_jobs.stop(row.id, ask.name)
    with pool.hub() as hub:
        view = hub.get(row.id)
        info = info_of(view, hub.swarms.get(view, ask.name))
    if not is_stopping and info.state != "finished":
        raise Conflict(
            "not_driven",
            f"swarm {ask.name!r} is not driven by this server: resume it here first, or ask the "
            "one that does",
        )
    return info


class Winner(OperationRequest, frozen=True):
    """`attempt`: the number of an attempt, by default the best."""

    name: str
    attempt: Number | None = None


@operation("POST", "/sessions/{session}/swarms/{name}/adopt", moves_head=True, needs_host=True)
def adopt_attempt(session: Session, ask: Winner) -> RestoreResult:
    """Replace the state, files and processes of a session by those of an attempt. The old head
    stays in the reflog.
    """
    return session.adopt(_attempt(session, ask).commit)


class Brought(msgspec.Struct, frozen=True):
    """The result of a merge. `conflicts`: files that both sides changed; the session's own version
    stays.
    """

    commit: CommitInfo
    facts: list[str]
    conflicts: list[str]
    up_to_date: bool


@operation("POST", "/sessions/{session}/swarms/{name}/merge", moves_head=True, needs_host=True)
def merge_attempt(session: Session, ask: Winner) -> Brought:
    """Merge the facts and files of an attempt into the session. If both changed the same thing, the
    session's own version stays.
    """
    attempt = _attempt(session, ask)
    message = f"swarm {ask.name}: merge attempt {attempt.i}"
    merged = session.merge(attempt.commit, favor="ours", message=message)
    return Brought(
        merged.commit,
        [fact.text for fact in (*merged.facts, *merged.lessons)],
        [one.path for one in merged.conflicts],
        merged.up_to_date,
    )


def _attempt(session: Session, ask: Winner) -> Attempt:
    result = hub_of(session).swarms.get(session, ask.name)
    if ask.attempt is None:
        chosen = result.best
    else:
        chosen = next((one for one in result.attempts if one.i == ask.attempt), None)
    if chosen is None or not chosen.commit:
        which = "attempt with a score" if ask.attempt is None else f"commit of {ask.attempt}"
        raise NotFound("no_attempt", f"swarm {ask.name!r} has no {which}: show it to see why")
    return chosen


class KeepAttempts(OperationRequest, frozen=True):
    """The numbers of the attempts to keep. If the list is empty, all forks are removed."""

    session: str
    name: str
    attempts: list[Number] = []


class KeptAttempts(msgspec.Struct, frozen=True):
    """The names of the sessions that were kept, and of those that were removed."""

    kept: list[str]
    dropped: list[str]


@operation("POST", "/sessions/{session}/swarms/{name}/keep", filtered=True, needs_host=True)
def keep_attempts(pool: SessionPool, ask: KeepAttempts, caller: Caller) -> KeptAttempts:
    """Keep the forks of these attempts as sessions, and remove all other forks from the store.
    Commits of removed forks stay until the reflog releases them. A fork that another process has
    open stays.
    """
    row = pool.row(ask.session, caller.sees)
    with pool.hub() as hub:
        view = hub.get(row.id)
        result = hub.swarms.get(view, ask.name)
        if result.state != "finished":
            raise Conflict("swarm_runs", f"swarm {ask.name!r} is not finished: wait, or stop it")
        before = {row.id: row for row in hub.sessions()}
        attempts = [one for one in result.attempts if one.id in before]
        for attempt in attempts:
            if attempt.i not in ask.attempts:
                drop_fork(hub, attempt.id, before[attempt.id].branch)
        left = {row.id for row in hub.sessions()}
    return KeptAttempts(
        [one.session for one in attempts if one.id in left],
        [one.session for one in attempts if one.id not in left],
    )

"""Swarms: many attempts from one commit, driven by the server in the background; the best kept."""

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
    """A swarm as it is now. `driven`: some process works at it; one that is not finished and not
    driven goes on when it is resumed."""

    driven: bool = False


def info_of(view: SessionReader, found: SwarmResult) -> SwarmInfo:
    hub, topic = hub_of(view), swarm_topic(view.id)
    driven = found.state != "finished" and is_lease_held(
        hub.catalog, topic, hub.store.host, hub.clock.now_ns()
    )
    return SwarmInfo(**msgspec.structs.asdict(found), driven=driven)


class BeginSwarm(OperationRequest, frozen=True):
    """`task` and `score` are commands; each finds ORTET_ATTEMPT, from 0, in its environment. The
    score is the number that its command prints last, else its exit code, 0 being best. `keep`: 1
    adopts the best, more leave the best as sessions, 0 none, merge or merge:K brings them together.
    `budget` is the share of each, `timeout` its seconds; `stop_when`: all end when one has this
    score. `at`: the commit to begin at. With the `name` and terms of one that was cut off, that one
    goes on; attempts that were `interrupted` are made again, or count as failed. `on`: ray has them
    made by nodes of the cluster that the server was started with, each with what it `needs`."""

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
def begin_swarm(rooms: SessionPool, ask: BeginSwarm, caller: Caller) -> SwarmInfo:
    """Begin a swarm, answered when its first attempts run. Until it is finished its session can be
    read, and is busy for all who would write to it."""
    options = msgspec.structs.asdict(ask)
    return _start_swarm(rooms, options.pop("session"), caller, options)


class ResumeSwarm(OperationRequest, frozen=True):
    """Wherever it ran before: `on` and `needs` are those of what is left."""

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
def resume_swarm(rooms: SessionPool, ask: ResumeSwarm, caller: Caller) -> SwarmInfo:
    """Go on with a swarm whose server was killed or stopped: what is done is not done again."""
    options = msgspec.structs.asdict(ask)
    return _start_swarm(rooms, options.pop("session"), caller, options)


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
    """The swarms of a session, the oldest first."""
    found = hub_of(view).swarms.all(view)
    return paginate(found, ask, lambda one: one.name).map_items(lambda one: info_of(view, one))


class NamedSwarm(OperationRequest, frozen=True):
    name: str


@operation("GET", "/sessions/{session}/swarms/{name}")
def show_swarm(view: SessionReader, ask: NamedSwarm) -> SwarmInfo:
    """One swarm, with its attempts."""
    return info_of(view, hub_of(view).swarms.get(view, ask.name))


@operation("POST", "/sessions/{session}/swarms/{name}/stop", filtered=True, needs_host=True)
def stop_swarm(rooms: SessionPool, ask: OfSwarm, caller: Caller) -> SwarmInfo:
    """Say that it is enough: attempts that run are ended, no others begun, and of those that are
    done the best is kept as was asked. It is finished a moment later."""
    row = rooms.row(ask.session, caller.sees)
    told = rooms.swarm_jobs.stop(row.id, ask.name)
    with rooms.hub() as hub:
        view = hub.get(row.id)
        found = info_of(view, hub.swarms.get(view, ask.name))
    if not told and found.state != "finished":
        raise Conflict(
            "not_driven",
            f"swarm {ask.name!r} is not driven by this server: resume it here first, or ask the "
            "one that does",
        )
    return found


class Winner(OperationRequest, frozen=True):
    """`attempt` by its number; without it, the best."""

    name: str
    attempt: Number | None = None


@operation("POST", "/sessions/{session}/swarms/{name}/adopt", moves_head=True, needs_host=True)
def adopt_attempt(session: Session, ask: Winner) -> RestoreResult:
    """Become an attempt: its mind, its files, its processes; the old head stays in the reflog."""
    return session.adopt(_attempt(session, ask).commit)


class Brought(msgspec.Struct, frozen=True):
    """What a merge brought. `conflicts`: files that both changed; ours stay."""

    commit: CommitInfo
    facts: list[str]
    conflicts: list[str]
    up_to_date: bool


@operation("POST", "/sessions/{session}/swarms/{name}/merge", moves_head=True, needs_host=True)
def merge_attempt(session: Session, ask: Winner) -> Brought:
    """Bring in what an attempt knows and changed; where both changed the same, ours stays."""
    attempt = _attempt(session, ask)
    message = f"swarm {ask.name}: merge attempt {attempt.i}"
    found = session.merge(attempt.commit, favor="ours", message=message)
    return Brought(
        found.commit,
        [fact.text for fact in (*found.facts, *found.lessons)],
        [one.path for one in found.conflicts],
        found.up_to_date,
    )


def _attempt(session: Session, ask: Winner) -> Attempt:
    found = hub_of(session).swarms.get(session, ask.name)
    if ask.attempt is None:
        chosen = found.best
    else:
        chosen = next((one for one in found.attempts if one.i == ask.attempt), None)
    if chosen is None or not chosen.commit:
        which = "attempt with a score" if ask.attempt is None else f"commit of {ask.attempt}"
        raise NotFound("no_attempt", f"swarm {ask.name!r} has no {which}: show it to see why")
    return chosen


class KeepAttempts(OperationRequest, frozen=True):
    """Attempts by their numbers; none: all forks go."""

    session: str
    name: str
    attempts: list[Number] = []


class KeptAttempts(msgspec.Struct, frozen=True):
    """Names of the sessions that stay, and of those that went."""

    kept: list[str]
    dropped: list[str]


@operation("POST", "/sessions/{session}/swarms/{name}/keep", filtered=True, needs_host=True)
def keep_attempts(rooms: SessionPool, ask: KeepAttempts, caller: Caller) -> KeptAttempts:
    """Keep the forks of these attempts as sessions, and take those of all others out of the store.
    Their commits stay until the reflog lets go. One that somebody has open stays."""
    row = rooms.row(ask.session, caller.sees)
    with rooms.hub() as hub:
        view = hub.get(row.id)
        found = hub.swarms.get(view, ask.name)
        if found.state != "finished":
            raise Conflict("swarm_runs", f"swarm {ask.name!r} is not finished: wait, or stop it")
        before = {one.id: one for one in hub.sessions()}
        forks = [one for one in found.attempts if one.id in before]
        for one in forks:
            if one.i not in ask.attempts:
                drop_fork(hub, one.id, before[one.id].branch)
        left = {one.id for one in hub.sessions()}
    return KeptAttempts(
        [one.session for one in forks if one.id in left],
        [one.session for one in forks if one.id not in left],
    )

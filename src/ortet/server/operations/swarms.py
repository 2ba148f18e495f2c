"""Swarms: many attempts from one commit, driven by the server in the background; the best kept."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ortet.errors import Conflict, NotFound
from ortet.history.commits import CommitInfo
from ortet.server.auth.tokens import Caller
from ortet.server.operations.machine import Command, Seconds
from ortet.server.operations.registry import operation
from ortet.server.paging import Page, Paged, page_of
from ortet.server.schemas import Ask, Number, Ref
from ortet.server.session_pool.pool import Rooms
from ortet.sessions.history.swarm_results import drop_fork
from ortet.sessions.reader import View
from ortet.sessions.results import Restored
from ortet.sessions.session import Session
from ortet.sessions.swarm_api import Attempt, Halt, SwarmResult, Watcher, swarm_topic
from ortet.store.lease import is_held

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


def info_of(view: View, found: SwarmResult) -> SwarmInfo:
    hub, topic = view.hub, swarm_topic(view.id)
    driven = found.state != "finished" and is_held(
        hub.catalog, topic, hub._parts.host, hub.clock.now_ns()
    )
    return SwarmInfo(**msgspec.structs.asdict(found), driven=driven)


class BeginSwarm(Ask, frozen=True):
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


@operation("POST", "/sessions/{session}/swarms", status=202, filtered=True, runs=True)
def begin_swarm(rooms: Rooms, ask: BeginSwarm, caller: Caller) -> SwarmInfo:
    """Begin a swarm, answered when its first attempts run. Until it is finished its session can be
    read, and is busy for all who would write to it."""
    options = msgspec.structs.asdict(ask)
    return _driven(rooms, options.pop("session"), caller, options)


class ResumeSwarm(Ask, frozen=True):
    """Wherever it ran before: `on` and `needs` are those of what is left."""

    session: str
    name: str
    parallel: AtOnce = 2
    stop_when: Score | None = None
    timeout: Seconds | None = None
    interrupted: Literal["again", "count"] = "again"
    on: str | None = None
    needs: dict[str, Amount] | None = None


@operation("POST", "/sessions/{session}/swarms/{name}/resume", status=202, filtered=True, runs=True)
def resume_swarm(rooms: Rooms, ask: ResumeSwarm, caller: Caller) -> SwarmInfo:
    """Go on with a swarm whose server was killed or stopped: what is done is not done again."""
    options = msgspec.structs.asdict(ask)
    return _driven(rooms, options.pop("session"), caller, options)


def _driven(rooms: Rooms, session: str, caller: Caller, options: dict[str, Any]) -> SwarmInfo:
    row = rooms.row(session, caller.sees)
    options["on"] = rooms.drives.place(options["on"])

    def run(halt: Halt, progress: Watcher) -> SwarmResult:
        with rooms.enter(row) as ours:
            return ours.swarm(**options, halt=halt, progress=progress)

    begun = rooms.drives.begin(row.id, run)
    with rooms.hub() as hub:
        return info_of(hub.get(row.id), begun)


class OfSwarm(Ask, frozen=True):
    session: str
    name: str


@operation("GET", "/sessions/{session}/swarms")
def list_swarms(view: View, ask: Paged) -> Page[SwarmInfo]:
    """The swarms of a session, the oldest first."""
    found = view.hub.swarms.all(view)
    return page_of(found, ask, lambda one: one.name).told(lambda one: info_of(view, one))


class NamedSwarm(Ask, frozen=True):
    name: str


@operation("GET", "/sessions/{session}/swarms/{name}")
def show_swarm(view: View, ask: NamedSwarm) -> SwarmInfo:
    """One swarm, with its attempts."""
    return info_of(view, view.hub.swarms.get(view, ask.name))


@operation("POST", "/sessions/{session}/swarms/{name}/stop", filtered=True, runs=True)
def stop_swarm(rooms: Rooms, ask: OfSwarm, caller: Caller) -> SwarmInfo:
    """Say that it is enough: attempts that run are ended, no others begun, and of those that are
    done the best is kept as was asked. It is finished a moment later."""
    row = rooms.row(ask.session, caller.sees)
    told = rooms.drives.stop(row.id, ask.name)
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


class Winner(Ask, frozen=True):
    """`attempt` by its number; without it, the best."""

    name: str
    attempt: Number | None = None


@operation("POST", "/sessions/{session}/swarms/{name}/adopt", moves=True, runs=True)
def adopt_attempt(session: Session, ask: Winner) -> Restored:
    """Become an attempt: its mind, its files, its processes; the old head stays in the reflog."""
    return session.adopt(_attempt(session, ask).commit)


class Brought(msgspec.Struct, frozen=True):
    """What a merge brought. `conflicts`: files that both changed; ours stay."""

    commit: CommitInfo
    facts: list[str]
    conflicts: list[str]
    up_to_date: bool


@operation("POST", "/sessions/{session}/swarms/{name}/merge", moves=True, runs=True)
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
    found = session.hub.swarms.get(session, ask.name)
    if ask.attempt is None:
        chosen = found.best
    else:
        chosen = next((one for one in found.attempts if one.i == ask.attempt), None)
    if chosen is None or not chosen.commit:
        which = "attempt with a score" if ask.attempt is None else f"commit of {ask.attempt}"
        raise NotFound("no_attempt", f"swarm {ask.name!r} has no {which}: show it to see why")
    return chosen


class KeepAttempts(Ask, frozen=True):
    """Attempts by their numbers; none: all forks go."""

    session: str
    name: str
    attempts: list[Number] = []


class Kept(msgspec.Struct, frozen=True):
    """Names of the sessions that stay, and of those that went."""

    kept: list[str]
    dropped: list[str]


@operation("POST", "/sessions/{session}/swarms/{name}/keep", filtered=True, runs=True)
def keep_attempts(rooms: Rooms, ask: KeepAttempts, caller: Caller) -> Kept:
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
    return Kept(
        [one.session for one in forks if one.id in left],
        [one.session for one in forks if one.id not in left],
    )

"""Facts: learn, list, retract; contradictions, and shared memory."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ortet.hub.hub import Hub, hub_of
from ortet.journal.state.merge import Contradiction
from ortet.journal.state.records import Fact
from ortet.server.auth.tokens import Caller
from ortet.server.operations.registry import operation
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import (
    Id,
    NonEmptyText,
    Number,
    OperationRequest,
    Ref,
    When,
    check_scope_visible,
    parse_time,
)
from ortet.sessions.memory.report import MemoryDiff, markdown
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

MemoryScope = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=300,
        description="Who knows it: session, agent, user:NAME or project:NAME.",
    ),
]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class ListFacts(Paged, frozen=True):
    """`at`: facts that were believed at that time. `on`: facts that are valid at that time. `past`:
    also facts that were retracted. `lesson`: true for only lessons, false for all other facts.
    """

    scope: MemoryScope | None = None
    about: str | None = None
    at: When | None = None
    on: When | None = None
    past: bool = False
    lesson: bool | None = None


@operation("GET", "/sessions/{session}/facts")
def list_facts(view: SessionReader, ask: ListFacts) -> Page[Fact]:
    """List the facts of a session, the oldest first."""
    selected = view.facts(
        scope=ask.scope,
        about=ask.about,
        at=parse_time(hub_of(view), "at", ask.at),
        on=parse_time(hub_of(view), "on", ask.on),
        past=ask.past,
    )
    chosen = [one for one in selected if ask.lesson in (None, one.lesson)]
    return paginate(chosen, ask, lambda one: one.id)


class Learn(OperationRequest, frozen=True):
    """`scope`: who shares the fact after it is committed. `since` and `until`: when the fact is
    valid. `source`: the number of the event that it comes from. `supersedes`: the id of the fact
    that it replaces.
    """

    text: NonEmptyText
    about: str = ""
    scope: MemoryScope | None = None
    confidence: Share = 1.0
    since: When | None = None
    until: When | None = None
    source: Number | None = None
    supersedes: Id | None = None


@operation("POST", "/sessions/{session}/facts", status=201)
def learn(session: Session, ask: Learn, caller: Caller) -> Fact:
    """Learn a fact."""
    fact_id = session.learn(
        ask.text,
        about=ask.about,
        scope=check_scope_visible(caller, ask.scope, session.internals.row.scopes),
        confidence=ask.confidence,
        since=parse_time(hub_of(session), "since", ask.since),
        until=parse_time(hub_of(session), "until", ask.until, ahead=True),
        source=ask.source,
        supersedes=ask.supersedes,
    )
    return session.memory.fact(fact_id)


class Lesson(OperationRequest, frozen=True):
    text: NonEmptyText
    about: str = ""
    scope: MemoryScope | None = None


@operation("POST", "/sessions/{session}/lessons", status=201)
def lesson(session: Session, ask: Lesson, caller: Caller) -> Fact:
    """Learn a lesson from a failure."""
    scope = check_scope_visible(caller, ask.scope, session.internals.row.scopes)
    return session.memory.fact(session.lesson(ask.text, about=ask.about, scope=scope))


class OneFact(OperationRequest, frozen=True):
    fact: Id


@operation("GET", "/sessions/{session}/facts/{fact}")
def show_fact(view: SessionReader, ask: OneFact) -> Fact:
    """Show a fact by its id, believed or retracted."""
    return view.memory.fact(ask.fact)


class FactHistory(msgspec.Struct, frozen=True):
    """The versions of a fact, the oldest first."""

    items: list[Fact]


@operation("GET", "/sessions/{session}/facts/{fact}/history")
def fact_history(view: SessionReader, ask: OneFact) -> FactHistory:
    """Show a fact with all facts that it superseded and that superseded it."""
    return FactHistory(view.memory.fact_history(ask.fact))


class Forget(OperationRequest, frozen=True):
    fact: Id
    why: str = ""


@operation("POST", "/sessions/{session}/facts/{fact}/forget")
def forget(session: Session, ask: Forget) -> Fact:
    """Retract a fact. The journal keeps the fact and the reason."""
    session.forget(ask.fact, why=ask.why)
    return session.memory.fact(ask.fact)


@operation("GET", "/sessions/{session}/contradictions")
def contradictions(view: SessionReader, ask: Paged) -> Page[Contradiction]:
    """List pairs of believed facts that contradict each other. `ours` is the older fact."""
    return paginate(view.memory.contradictions(), ask, lambda one: f"{one.ours.id}/{one.theirs.id}")


class SharedMemory(msgspec.Struct, frozen=True):
    """`name`: the owner of the shared memory. `events`: the number of its events that the session
    knows.
    """

    name: str
    events: int


class SharedMemories(msgspec.Struct, frozen=True):
    items: list[SharedMemory]


@operation("GET", "/sessions/{session}/memory/shared")
def shared(view: SessionReader) -> SharedMemories:
    """List the shared memories of a session, as far as the session knows them."""
    return SharedMemories([SharedMemory(one.name, one.tip.seq) for one in view.memory.shared()])


@operation("POST", "/sessions/{session}/memory/refresh")
def refresh(session: Session) -> SharedMemories:
    """Read the newest facts of shared memories, even if the session was restored to an earlier
    commit.
    """
    session.memory.refresh()
    return shared(session)


class AskMemory(OperationRequest, frozen=True):
    form: Literal["markdown"] = "markdown"


class MemoryText(msgspec.Struct, frozen=True):
    markdown: str


@operation("GET", "/sessions/{session}/memory")
def memory(view: SessionReader, ask: AskMemory) -> MemoryText:
    """Return all facts, decisions and episodes of a session as text."""
    del ask
    return MemoryText(markdown(view))


class DiffMemory(OperationRequest, frozen=True):
    """`old` and `new`: the two commits."""

    old: Ref
    new: Ref


@operation("GET", "/memory/diff", filtered=True)
def memory_diff(hub: Hub, ask: DiffMemory, caller: Caller) -> MemoryDiff:
    """Compare the facts, episodes and decisions of two commits. A token that is limited to agents
    may name only commits of their sessions.
    """
    del caller  # the hub resolves only commits that the caller may see
    return hub.memory.diff(ask.old, ask.new)

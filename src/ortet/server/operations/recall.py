"""Recall of messages, events and facts by a question; and episodes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import msgspec

from ortet.hub.hub import Hub, hub_of
from ortet.journal.state.records import Episode
from ortet.memory.records import Tier
from ortet.server.auth.tokens import Caller
from ortet.server.operations.facts import MemoryScope, Share
from ortet.server.operations.registry import operation
from ortet.server.operations.sessions import Agent
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import (
    OperationRequest,
    When,
    check_agent_visible,
    check_scope_visible,
    parse_time,
    visible_session,
)
from ortet.sessions.memory.consolidate import ConsolidationReport
from ortet.sessions.reader import SessionReader
from ortet.sessions.results import RecallHit, RecallResult
from ortet.sessions.session import Session


class Recall(OperationRequest, frozen=True):
    """`tiers`: only messages (working), episodes (episodic) or facts (semantic). `at`: only
    memories that existed at that time. `on`: facts that are valid at that time. `since`: only
    events from this time on. `explain`: include `scores`, which say why each memory was found.
    """

    query: Annotated[str, msgspec.Meta(max_length=1 << 16)]
    k: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    tiers: list[Tier] = []
    at: When | None = None
    on: When | None = None
    since: When | None = None
    scope: MemoryScope | None = None
    explain: bool = False


class RecallAnywhere(Recall, frozen=True):
    """`agent`: only sessions of this agent. `session`: only this session. Without them, all
    sessions that the token may see are searched.
    """

    agent: str | None = None
    session: str | None = None


class Recollection(msgspec.Struct, frozen=True):
    """The memories that were found, the best first. `dense`: how embeddings took part: "" if there
    is no embedder, "all", "some" if other memories are not embedded yet, otherwise the reason why
    not.
    """

    hits: list[RecallHit]
    dense: str


def _recall_options(hub: Hub, ask: Recall) -> dict[str, Any]:
    return {
        "tiers": ask.tiers or None,
        "at": parse_time(hub, "at", ask.at),
        "on": parse_time(hub, "on", ask.on),
        "since": parse_time(hub, "since", ask.since),
        "scope": ask.scope,
        "explain": ask.explain,
    }


def _recollection(recalled: RecallResult) -> Recollection:
    return Recollection(list(recalled), recalled.dense)


@operation("GET", "/sessions/{session}/recall")
def recall(view: SessionReader, ask: Recall, caller: Caller) -> Recollection:
    """Find the memories of a session, and of its shared memory, that are nearest to a question."""
    check_scope_visible(caller, ask.scope, view.internals.row.scopes)
    return _recollection(view.recall(ask.query, ask.k, **_recall_options(hub_of(view), ask)))


@operation("GET", "/recall", filtered=True)
def recall_anywhere(hub: Hub, ask: RecallAnywhere, caller: Caller) -> Recollection:
    """Find the memories that are nearest to a question, in many sessions and in their shared
    memory.
    """
    row = (
        visible_session(hub, caller, ask.session).internals.row if ask.session is not None else None
    )
    check_scope_visible(caller, ask.scope, row.scopes if row is not None else ())
    agents = _agents(caller, ask.agent)
    asked = _recall_options(hub, ask)
    return _recollection(hub.recall(ask.query, ask.k, agent=agents, session=ask.session, **asked))


def _agents(caller: Caller, agent: str | None) -> Collection[str] | str | None:
    """Return the agents whose sessions are searched."""
    if agent is not None:
        return check_agent_visible(caller, agent)
    return caller.agents or None


class ListEpisodes(Paged, frozen=True):
    """`since`: only episodes that end at this time or later. `until`: only episodes that begin
    before this time.
    """

    since: When | None = None
    until: When | None = None
    outcome: str | None = None


class ListAllEpisodes(ListEpisodes, frozen=True):
    agent: str | None = None


@operation("GET", "/sessions/{session}/episodes")
def list_episodes(view: SessionReader, ask: ListEpisodes) -> Page[Episode]:
    """List the episodes of a session and the episodes that other sessions share with it, the oldest
    first.
    """
    episodes = view.memory.episodes(
        since=parse_time(hub_of(view), "since", ask.since),
        until=parse_time(hub_of(view), "until", ask.until),
        outcome=ask.outcome,
    )
    return paginate(episodes, ask, lambda one: one.id)


@operation("GET", "/episodes", filtered=True)
def all_episodes(hub: Hub, ask: ListAllEpisodes, caller: Caller) -> Page[Episode]:
    """List the episodes of all sessions that the token may see, the oldest first."""
    agents = _agents(caller, ask.agent)
    by_id: dict[str, Episode] = {}
    for agent in [agents] if agents is None or isinstance(agents, str) else agents:
        episodes = hub.memory.episodes(
            agent=agent,
            since=parse_time(hub, "since", ask.since),
            until=parse_time(hub, "until", ask.until),
            outcome=ask.outcome,
        )
        by_id |= {one.id: one for one in episodes}
    chosen = sorted(by_id.values(), key=lambda one: (one.time, one.id))
    return paginate(chosen, ask, lambda one: one.id)


class Milestone(OperationRequest, frozen=True):
    """`summary`: the text of the episode; without it, a summary of messages, decisions and facts is
    made.
    """

    summary: str = ""
    outcome: str = ""
    importance: Share | None = None


class Remembered(msgspec.Struct, frozen=True):
    """`id`: the id of the new episode, or null if nothing has happened since the last episode."""

    id: str | None


@operation("POST", "/sessions/{session}/milestones", status=201)
def milestone(session: Session, ask: Milestone) -> Remembered:
    """Record all events since the last episode as one episode."""
    episode_id = session.milestone(ask.summary, outcome=ask.outcome, importance=ask.importance)
    return Remembered(episode_id or None)


class Consolidate(OperationRequest, frozen=True):
    """`dry_run`: only report the facts that would be added."""

    agent: Agent = "default"
    dry_run: bool = False


@operation("POST", "/memory/consolidate", filtered=True)
def consolidate(hub: Hub, ask: Consolidate, caller: Caller) -> ConsolidationReport:
    """Extract facts from the episodes of an agent, each with its source event. Existing facts are
    not changed.
    """
    return hub.memory.consolidate(check_agent_visible(caller, ask.agent), dry_run=ask.dry_run)

"""Recall: what was said, what happened and what is known, found again; and episodes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import msgspec

from ortet.hub.hub import Hub, hub_of
from ortet.journal.state.records import Episode
from ortet.memory.records import Tier
from ortet.server.auth.tokens import Caller
from ortet.server.operations.memory import MemoryScope, Share
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
    """`tiers`: only messages (working), episodes (episodic) or facts (semantic). `at`: what could
    be known then; `on`: facts that hold at that moment; `since`: what happened from then on.
    `explain`: with `scores`, which say why each was found."""

    query: Annotated[str, msgspec.Meta(max_length=1 << 16)]
    k: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    tiers: list[Tier] = []
    at: When | None = None
    on: When | None = None
    since: When | None = None
    scope: MemoryScope | None = None
    explain: bool = False


class RecallAnywhere(Recall, frozen=True):
    """In all sessions that the token may see, in those of an `agent`, or in one `session`."""

    agent: str | None = None
    session: str | None = None


class Recollection(msgspec.Struct, frozen=True):
    """The best first. `dense` says how meaning took part: "" there is no embedder, all, some when
    others are not embedded yet, else why not."""

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
    """The memories nearest to a question, of a session and of what it shares."""
    check_scope_visible(caller, ask.scope, view.row.scopes)
    return _recollection(view.recall(ask.query, ask.k, **_recall_options(hub_of(view), ask)))


@operation("GET", "/recall", filtered=True)
def recall_anywhere(hub: Hub, ask: RecallAnywhere, caller: Caller) -> Recollection:
    """The memories nearest to a question in many sessions, and in what they share."""
    row = visible_session(hub, caller, ask.session).row if ask.session is not None else None
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
    """Those that end from `since` on and begin before `until`."""

    since: When | None = None
    until: When | None = None
    outcome: str | None = None


class ListAllEpisodes(ListEpisodes, frozen=True):
    agent: str | None = None


@operation("GET", "/sessions/{session}/episodes")
def list_episodes(view: SessionReader, ask: ListEpisodes) -> Page[Episode]:
    """What happened, here and, where it was told, in other sessions; the oldest first."""
    found = view.episodes(
        since=parse_time(hub_of(view), "since", ask.since),
        until=parse_time(hub_of(view), "until", ask.until),
        outcome=ask.outcome,
    )
    return paginate(found, ask, lambda one: one.id)


@operation("GET", "/episodes", filtered=True)
def all_episodes(hub: Hub, ask: ListAllEpisodes, caller: Caller) -> Page[Episode]:
    """What happened in all sessions that the token may see, the oldest first."""
    agents = _agents(caller, ask.agent)
    found: dict[str, Episode] = {}
    for agent in [agents] if agents is None or isinstance(agents, str) else agents:
        told = hub.episodes(
            agent=agent,
            since=parse_time(hub, "since", ask.since),
            until=parse_time(hub, "until", ask.until),
            outcome=ask.outcome,
        )
        found |= {one.id: one for one in told}
    chosen = sorted(found.values(), key=lambda one: (one.time, one.id))
    return paginate(chosen, ask, lambda one: one.id)


class Milestone(OperationRequest, frozen=True):
    """Without a `summary`, one is made of what was said, decided and learned."""

    summary: str = ""
    outcome: str = ""
    importance: Share | None = None


class Remembered(msgspec.Struct, frozen=True):
    """`id` of the episode; null: nothing has happened since the last one."""

    id: str | None


@operation("POST", "/sessions/{session}/milestones", status=201)
def milestone(session: Session, ask: Milestone) -> Remembered:
    """Remember what happened since the last episode as one."""
    made = session.milestone(ask.summary, outcome=ask.outcome, importance=ask.importance)
    return Remembered(made or None)


class Consolidate(OperationRequest, frozen=True):
    """`dry_run`: only tell what it would add."""

    agent: Agent = "default"
    dry_run: bool = False


@operation("POST", "/memory/consolidate", filtered=True)
def consolidate(hub: Hub, ask: Consolidate, caller: Caller) -> ConsolidationReport:
    """Make facts of an agent's episodes, each with the event that it is from. It only adds."""
    return hub.consolidate(check_agent_visible(caller, ask.agent), dry_run=ask.dry_run)

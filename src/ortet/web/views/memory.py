"""Memory as the page shows it: what a question finds and why, what is known, what happened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from starlette.responses import Response

from ortet.errors import OrtetError
from ortet.hub.hub import Hub
from ortet.journal.state.records import Episode, Fact
from ortet.memory.records import Scores
from ortet.server.auth.tokens import Caller
from ortet.server.schemas import moment
from ortet.sessions.hits import Hit
from ortet.sessions.reader import View
from ortet.web.asking import about, asked
from ortet.web.request import Visit

_MOST = 200
_K = 30
SAYS = {
    "working": "what was said",
    "episodic": "what happened",
    "semantic": "what is known",
}


class AskMemory(msgspec.Struct, frozen=True):
    """What the address says. `fact`: whose history is shown; `show`: what is listed where nothing
    is asked."""

    q: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    tier: str = ""
    scope: str = ""
    at: str = ""
    show: Literal["facts", "episodes"] = "facts"
    past: bool = False
    fact: str = ""


class Reason(msgspec.Struct, frozen=True):
    """One part of why a memory was found; `weight`: how much, from 0 to 100."""

    name: str
    value: str
    weight: int


class Found(msgspec.Struct, frozen=True):
    """A memory. `href` leads to the event it is from, "" where that cannot be seen."""

    hit: Hit
    says: str
    reasons: list[Reason]
    terms: list[str]
    pruned: list[str]
    href: str


class Memories(msgspec.Struct, frozen=True):
    """`dense` says how meaning took part; `facts` and `episodes` the newest first; `history` is
    that of the fact that was asked for, the oldest first; `fault` is what was wrong with what was
    asked."""

    ask: AskMemory
    found: list[Found] = []
    dense: str = ""
    facts: list[Fact] = []
    episodes: list[Episode] = []
    history: list[Fact] = []
    scopes: list[str] = []
    count: int = 0
    fault: str = ""


def memories(hub: Hub, caller: Caller, view: View | None, ask: AskMemory) -> Memories:
    """Of one session, with what it shares, or of all that the caller sees."""
    made = Memories(ask, scopes=_scopes(view))
    try:
        if ask.q.strip():
            return _found(hub, caller, view, made)
        if view is None:
            return _told(hub, caller, made)
        return _known(view, made)
    except OrtetError as error:
        if error.name != "invalid":
            raise
        return msgspec.structs.replace(made, fault=error.message)


def _found(hub: Hub, caller: Caller, view: View | None, made: Memories) -> Memories:
    ask, query = made.ask, made.ask.q.strip()
    tiers = [ask.tier] if ask.tier else None
    at = moment(hub, "at", ask.at or None)
    scope = ask.scope or None
    hits: list[Hit] = []
    if view is not None:
        recalled = view.recall(query, _K, tiers=tiers, at=at, scope=scope, explain=True)
        hits, dense = list(recalled), recalled.dense
    else:
        dense = ""
        for agent in caller.agents or (None,):
            recalled = hub.recall(
                query, _K, agent=agent, tiers=tiers, at=at, scope=scope, explain=True
            )
            hits, dense = [*hits, *recalled], recalled.dense
        hits = sorted(hits, key=lambda one: -one.score)[:_K]
    found = [_shown(hub, hit, caller) for hit in hits]
    return msgspec.structs.replace(made, found=found, dense=dense, count=len(found))


def _shown(hub: Hub, hit: Hit, caller: Caller) -> Found:
    scores = hit.scores or Scores()
    return Found(
        hit=hit,
        says=SAYS[hit.tier],
        reasons=list(_reasons(scores)),
        terms=list(scores.terms),
        pruned=list(scores.pruned),
        href=_href(hub, hit, caller),
    )


def _reasons(scores: Scores) -> Iterable[Reason]:
    if scores.bm25_rank:
        yield Reason("words", f"{scores.bm25:.2f}, rank {scores.bm25_rank}", _by(scores.bm25_rank))
    if scores.cosine_rank:
        yield Reason(
            "meaning", f"{scores.cosine:.2f}, rank {scores.cosine_rank}", _by(scores.cosine_rank)
        )
    if scores.recency_rank:
        yield Reason("newness", f"rank {scores.recency_rank}", _by(scores.recency_rank))
    yield Reason("importance", f"{scores.importance:g}", round(100 * min(1, scores.importance)))


def _by(rank: int) -> int:
    """As it counts when lists are united: the first the most."""
    return max(4, round(100 * 61 / (60 + rank) - 100 * (rank - 1) / (rank + 30)))


def _href(hub: Hub, hit: Hit, caller: Caller) -> str:
    """Where the event can be looked at: one of a session, not of a memory that sessions share."""
    source = hit.source
    if not source.session or source.scope:
        return ""
    try:
        row = hub._minds().roll.get(source.session)
    except OrtetError:
        return ""
    return f"/s/{row.id}/journal?before={source.seq + 1}" if caller.sees(row.agent) else ""


def _known(view: View, made: Memories) -> Memories:
    ask = made.ask
    at = moment(view.hub, "at", ask.at or None)
    history = view.fact_history(ask.fact) if ask.fact else []
    if ask.show == "episodes":
        told = view.episodes(until=at)[::-1]
        return msgspec.structs.replace(
            made, episodes=told[:_MOST], history=history, count=len(told)
        )
    facts = view.facts(scope=ask.scope or None, at=at, past=ask.past)[::-1]
    return msgspec.structs.replace(made, facts=facts[:_MOST], history=history, count=len(facts))


def _told(hub: Hub, caller: Caller, made: Memories) -> Memories:
    """Of all sessions: what happened in them. Facts are those of a session, or are asked for."""
    episodes: dict[str, Episode] = {}
    for agent in caller.agents or (None,):
        episodes |= {one.id: one for one in hub.episodes(agent=agent)}
    told = sorted(episodes.values(), key=lambda one: (one.time, one.id))[::-1]
    return msgspec.structs.replace(made, episodes=told[:_MOST], count=len(told))


def _scopes(view: View | None) -> list[str]:
    if view is None:
        return []
    return ["session", *dict.fromkeys(one.name for one in view.shared())]


def memory(visit: Visit) -> Response:
    """The page of all sessions."""
    ask = asked(visit, AskMemory)
    with visit.hub() as hub:
        found = memories(hub, visit.caller, None, ask)
    return visit.show("memory.html", found=found, tiers=SAYS, here="/memory")


def session_memory(visit: Visit) -> Response:
    """The page of one."""
    ask = asked(visit, AskMemory)
    with visit.view() as view:
        found = memories(view.hub, visit.caller, view, ask)
        given = about(view)
    here = f"/s/{given['row'].id}/memory"
    return visit.show(
        "session_memory.html", tab="memory", found=found, tiers=SAYS, here=here, **given
    )

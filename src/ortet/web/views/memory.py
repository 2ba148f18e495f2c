"""The memory pages: results of a search with their scores, facts and episodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from starlette.responses import Response

from ortet.errors import OrtetError
from ortet.hub.hub import Hub, hub_of
from ortet.journal.state.records import Episode, Fact
from ortet.memory.records import Scores
from ortet.server.auth.tokens import Caller
from ortet.server.schemas import parse_time
from ortet.sessions.reader import SessionReader
from ortet.sessions.results import RecallHit
from ortet.web.request import PageRequest, parse_query, session_frame

_MAX_LISTED = 200
_RECALL_LIMIT = 30
TIER_LABELS = {
    "working": "what was said",
    "episodic": "what happened",
    "semantic": "what is known",
}


class MemoryQuery(msgspec.Struct, frozen=True):
    """The query.

    `fact` selects a fact whose history is shown; `show` what is listed without a search.
    """

    q: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    tier: str = ""
    scope: str = ""
    at: str = ""
    show: Literal["facts", "episodes"] = "facts"
    past: bool = False
    fact: str = ""


class HitReason(msgspec.Struct, frozen=True):
    """One score of a search result. `weight` is its share from 0 to 100."""

    name: str
    value: str
    weight: int


class MemoryHit(msgspec.Struct, frozen=True):
    """A search result. `href` leads to its event, or is "" if the caller cannot see it."""

    hit: RecallHit
    says: str
    reasons: list[HitReason]
    terms: list[str]
    pruned: list[str]
    href: str


class MemoryPage(msgspec.Struct, frozen=True):
    """The data of the page.

    `dense` says how vector search took part. `facts` and `episodes` are newest first. `history` has
    the versions of the selected fact, oldest first. `fault` is the error of an invalid query.
    """

    ask: MemoryQuery
    hits: list[MemoryHit] = []
    dense: str = ""
    facts: list[Fact] = []
    episodes: list[Episode] = []
    history: list[Fact] = []
    scopes: list[str] = []
    count: int = 0
    fault: str = ""


def build_memory_page(
    hub: Hub, caller: Caller, view: SessionReader | None, ask: MemoryQuery
) -> MemoryPage:
    """Return the memory of one session with its shared scopes, or of all visible sessions."""
    page = MemoryPage(ask, scopes=_scopes(view))
    try:
        if ask.q.strip():
            return _recall_page(hub, caller, view, page)
        if view is None:
            return _episodes_page(hub, caller, page)
        return _session_page(view, page)
    except OrtetError as error:
        if error.name != "invalid":
            raise
        return msgspec.structs.replace(page, fault=error.message)


def _recall_page(
    hub: Hub, caller: Caller, view: SessionReader | None, page: MemoryPage
) -> MemoryPage:
    ask, query = page.ask, page.ask.q.strip()
    tiers = [ask.tier] if ask.tier else None
    when = parse_time(hub, "at", ask.at or None)
    scope = ask.scope or None
    hits: list[RecallHit] = []
    if view is not None:
        recalled = view.recall(
            query, _RECALL_LIMIT, tiers=tiers, at=when, scope=scope, explain=True
        )
        hits, dense = list(recalled), recalled.dense
    else:
        dense = ""
        for agent in caller.agents or (None,):
            recalled = hub.recall(
                query, _RECALL_LIMIT, agent=agent, tiers=tiers, at=when, scope=scope, explain=True
            )
            hits, dense = [*hits, *recalled], recalled.dense
        hits = sorted(hits, key=lambda one: -one.score)[:_RECALL_LIMIT]
    results = [_memory_hit(hub, hit, caller) for hit in hits]
    return msgspec.structs.replace(page, hits=results, dense=dense, count=len(results))


def _memory_hit(hub: Hub, hit: RecallHit, caller: Caller) -> MemoryHit:
    scores = hit.scores or Scores()
    return MemoryHit(
        hit=hit,
        says=TIER_LABELS[hit.tier],
        reasons=list(_hit_reasons(scores)),
        terms=list(scores.terms),
        pruned=list(scores.pruned),
        href=_href(hub, hit, caller),
    )


def _hit_reasons(scores: Scores) -> Iterable[HitReason]:
    if scores.bm25_rank:
        yield HitReason(
            "words", f"{scores.bm25:.2f}, rank {scores.bm25_rank}", _rank_weight(scores.bm25_rank)
        )
    if scores.cosine_rank:
        yield HitReason(
            "meaning",
            f"{scores.cosine:.2f}, rank {scores.cosine_rank}",
            _rank_weight(scores.cosine_rank),
        )
    if scores.recency_rank:
        yield HitReason("newness", f"rank {scores.recency_rank}", _rank_weight(scores.recency_rank))
    yield HitReason("importance", f"{scores.importance:g}", round(100 * min(1, scores.importance)))


def _rank_weight(rank: int) -> int:
    """Return a weight for a rank, similar to rank fusion: the first rank counts most."""
    return max(4, round(100 * 61 / (60 + rank) - 100 * (rank - 1) / (rank + 30)))


def _href(hub: Hub, hit: RecallHit, caller: Caller) -> str:
    """Return the address of the event. Facts of shared scopes have none."""
    source = hit.source
    if not source.session or source.scope:
        return ""
    try:
        row = hub.internals.session_manager.table.get(source.session)
    except OrtetError:
        return ""
    return f"/s/{row.id}/journal?before={source.seq + 1}" if caller.sees(row.agent) else ""


def _session_page(view: SessionReader, page: MemoryPage) -> MemoryPage:
    ask = page.ask
    when = parse_time(hub_of(view), "at", ask.at or None)
    history = view.memory.fact_history(ask.fact) if ask.fact else []
    if ask.show == "episodes":
        episodes = view.memory.episodes(until=when)[::-1]
        return msgspec.structs.replace(
            page, episodes=episodes[:_MAX_LISTED], history=history, count=len(episodes)
        )
    facts = view.facts(scope=ask.scope or None, at=when, past=ask.past)[::-1]
    return msgspec.structs.replace(
        page, facts=facts[:_MAX_LISTED], history=history, count=len(facts)
    )


def _episodes_page(hub: Hub, caller: Caller, page: MemoryPage) -> MemoryPage:
    """Return the episodes of all sessions. Facts are shown per session, or as search results."""
    episodes: dict[str, Episode] = {}
    for agent in caller.agents or (None,):
        episodes |= {one.id: one for one in hub.memory.episodes(agent=agent)}
    newest_first = sorted(episodes.values(), key=lambda one: (one.time, one.id))[::-1]
    return msgspec.structs.replace(
        page, episodes=newest_first[:_MAX_LISTED], count=len(newest_first)
    )


def _scopes(view: SessionReader | None) -> list[str]:
    if view is None:
        return []
    return ["session", *dict.fromkeys(one.name for one in view.memory.shared())]


def memory(page_request: PageRequest) -> Response:
    """Render the memory page of all sessions."""
    ask = parse_query(page_request, MemoryQuery)
    with page_request.hub() as hub:
        page = build_memory_page(hub, page_request.caller, None, ask)
    return page_request.render("memory.html", page=page, tiers=TIER_LABELS, here="/memory")


def session_memory(page_request: PageRequest) -> Response:
    """Render the memory page of one session."""
    ask = parse_query(page_request, MemoryQuery)
    with page_request.view() as view:
        page = build_memory_page(hub_of(view), page_request.caller, view, ask)
        frame = session_frame(view)
    here = f"/s/{frame['row'].id}/memory"
    return page_request.render(
        "session_memory.html", tab="memory", page=page, tiers=TIER_LABELS, here=here, **frame
    )

"""Memories that answer a question, among those that can be seen from where it is asked."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

import msgspec

from ortet.memory.base import Reading, WordIndex
from ortet.memory.lexical.candidates import Effort, Terms, candidates, choose
from ortet.memory.lexical.reader import Ended, Entry, tier_of
from ortet.memory.lexical.scoring import (
    Counted,
    Weights,
    Window,
    bm25,
    count_terms,
    fuse,
    nearness,
    ranks,
)
from ortet.memory.lexical.visibility import Stretch, Visible, see
from ortet.memory.records import Answer, Found, Path, Query, Scores, Span, Tier

_NEAR = 2
"""How many more are looked at by meaning: the shortest of the nearest are none."""
_MORE = 16
"""So many times more are asked for by meaning, when those that were found are all gone."""


class Near(msgspec.Struct, frozen=True):
    """Memories by meaning: (timeline, seq, cosine), the nearest first. `status` as in Answer."""

    places: list[tuple[str, int, float]]
    status: str = "all"


class Vectors(Protocol):
    """Finds by meaning. It never raises because an embedder fails or is late: `status` says so."""

    def rank(self, spans: Sequence[Span], tiers: Sequence[Tier], text: str, limit: int) -> Near: ...


class _Hit(NamedTuple):
    entry: Entry
    stretch: Stretch
    bm25: float
    window: Window | None


def search(
    index: WordIndex,
    paths: Sequence[Path],
    query: Query,
    *,
    vectors: Vectors | None = None,
    weights: Weights | None = None,
    effort: Effort | None = None,
) -> Answer:
    """The `query.k` best, the best first. Raises Lost when the index is not filled for the paths.

    Whatever is not on the paths has no influence: not on what is found, nor on its score.
    """
    weights = weights or Weights()
    effort = (effort or Effort()).for_many(query.k)
    near = Near([], "")
    limit = _NEAR * effort.documents
    if vectors is not None and query.text.strip():
        spans = _spans(index, paths, query)
        near = vectors.rank(spans, query.tiers, query.text, limit)
    answer = _answer(index, paths, query, near=near, weights=weights, effort=effort)
    if vectors is not None and len(near.places) >= limit and len(answer.found) < query.k:
        # What is believed no longer has taken all the places.
        near = vectors.rank(spans, query.tiers, query.text, limit * _MORE)
        answer = _answer(index, paths, query, near=near, weights=weights, effort=effort)
    return answer


def _answer(
    index: WordIndex,
    paths: Sequence[Path],
    query: Query,
    *,
    near: Near,
    weights: Weights,
    effort: Effort,
) -> Answer:
    words = index.words.query_terms(query.text)
    with index.reading() as lookup:
        visible = see(lookup, paths, query)
        postings = lookup.postings(visible, limit=effort.counted)
        terms = choose(postings, visible.total, words, effort)
        some = candidates(postings, visible, terms, weights, effort)
        found = _enough(lookup, visible, some, query, effort.documents // 2)
        hits = _scored(lookup, visible, found, terms.rarities, weights)
        cosines = _by_meaning(lookup, visible, near, query, hits)
    return Answer(_fused(hits, cosines, k=query.k, weights=weights, terms=terms), near.status)


def _spans(index: WordIndex, paths: Sequence[Path], query: Query) -> list[Span]:
    """Those of the paths, cut by time: what is not asked for must take nobody's place."""
    if not query.at and not query.after:
        heard = (path for path in paths if path.tiers)
        return [span for path in heard for span in path.spans if span.upto > span.after]
    with index.reading() as lookup:
        return see(lookup, paths, query).spans(lookup)


def _enough(
    lookup: Reading, visible: Visible, some: Iterable[list[int]], query: Query, enough: int
) -> dict[int, Entry]:
    """Candidates that are believed and valid, by their ids."""
    found: dict[int, Entry] = {}
    for ids in some:
        found.update(_living(lookup, visible, lookup.entries(ids), query))
        if len(found) >= enough:
            break
    return found


def _scored(
    lookup: Reading,
    visible: Visible,
    found: Mapping[int, Entry],
    rarities: Mapping[str, float],
    weights: Weights,
) -> dict[int, _Hit]:
    """With how often and how long, and what stands beside them."""
    beside = visible.beside(found)
    others = {id_ for pair in beside.values() for id_ in pair if id_ and id_ not in found}
    own = ((id_, entry.length, entry.words, entry.counts) for id_, entry in found.items())
    counted = {
        id_: Counted(count_terms(words, counts, rarities), length)
        for id_, length, words, counts in chain(own, lookup.contents(others))
    }
    hits: dict[int, _Hit] = {}
    for id_, entry in found.items():
        before, behind = beside[id_]
        window = Window(counted[id_], counted.get(before), counted.get(behind))
        score = bm25(window, rarities=rarities, average=visible.average(id_), weights=weights)
        stretch = visible.stretch(id_)
        if score > 0 and stretch is not None:
            hits[id_] = _Hit(entry, stretch, score, window)
    return hits


def _by_meaning(
    lookup: Reading, visible: Visible, near: Near, query: Query, hits: dict[int, _Hit]
) -> dict[int, float]:
    """Cosines of what is near and can be seen; what words did not find joins the hits."""
    numbers = lookup.timelines({timeline for timeline, _, _ in near.places})
    places: dict[str, list[int]] = {}
    for timeline, seq, _ in near.places:
        places.setdefault(timeline, []).append(seq)
    ids = lookup.exactly({numbers[name][0]: places[name] for name in numbers})
    cosines: dict[int, float] = {}
    seen: dict[int, Stretch] = {}
    for timeline, seq, cosine in near.places:
        id_ = ids.get((numbers[timeline][0], seq), 0) if timeline in numbers else 0
        stretch = visible.stretch(id_)
        if stretch is not None:
            cosines[id_], seen[id_] = cosine, stretch
    new = lookup.entries((id_ for id_ in cosines if id_ not in hits), bare=True)
    for id_, entry in _living(lookup, visible, new, query).items():
        hits[id_] = _Hit(entry, seen[id_], 0.0, None)
    return {id_: cosine for id_, cosine in cosines.items() if id_ in hits}


def _living(
    lookup: Reading, visible: Visible, entries: Mapping[int, Entry], query: Query
) -> dict[int, Entry]:
    """Those that are believed, and were valid when it is asked for."""
    keys = [entry.key for entry in entries.values() if entry.key]
    ends: dict[str, list[Ended]] = {}
    for end in lookup.ends(keys):
        ends.setdefault(end.key, []).append(end)
    return {
        id_: entry
        for id_, entry in entries.items()
        if _valid(entry, query)
        and _meant(visible, entry, query)
        and not any(visible.holds(e, id_) for e in ends.get(entry.key, ()))
    }


def _valid(entry: Entry, query: Query) -> bool:
    if query.at and entry.time > query.at:
        return False
    if not query.on:
        return True
    return (not entry.since or entry.since <= query.on) and (
        not entry.until or query.on < entry.until
    )


def _meant(visible: Visible, entry: Entry, query: Query) -> bool:
    """Facts are found where they are meant for, also before they are told there."""
    stretch = visible.stretch(entry.id)
    if query.scope is None or stretch is None:
        return True
    if stretch.scope == query.scope:
        return not entry.scope or tier_of(entry.id) != "semantic"
    return entry.scope == query.scope


def _fused(
    hits: Mapping[int, _Hit],
    cosines: Mapping[int, float],
    *,
    k: int,
    weights: Weights,
    terms: Terms,
) -> list[Found]:
    kept = _once(hits)
    by_words = ranks({id_: hits[id_].bm25 for id_ in kept if hits[id_].bm25 > 0})
    by_meaning = ranks(
        {id_: _near(hits[id_], cosines[id_], weights) for id_ in kept if id_ in cosines}
    )
    by_time = ranks({id_: hits[id_].entry.time for id_ in kept})
    by_importance = ranks({id_: hits[id_].entry.importance for id_ in kept})
    lists = [
        (weights.bm25, by_words),
        (weights.cosine, by_meaning),
        (weights.recency, by_time),
        (weights.importance, by_importance),
    ]
    fused = fuse(kept, lists, flatness=weights.flatness)
    best = heapq.nsmallest(max(k, 0), kept, key=lambda id_: _order(hits[id_], fused[id_]))
    return [
        _found(
            hits[id_],
            fused[id_],
            Scores(
                bm25=hits[id_].bm25,
                bm25_rank=by_words.get(id_, 0),
                cosine=cosines.get(id_, 0.0),
                cosine_rank=by_meaning.get(id_, 0),
                recency_rank=by_time[id_],
                importance=hits[id_].entry.importance,
                terms=_has(hits[id_].window, terms.rarities),
                pruned=terms.pruned,
            ),
        )
        for id_ in best
    ]


def _near(hit: _Hit, cosine: float, weights: Weights) -> float:
    """Facts and episodes are short and say something: only of messages does length tell."""
    if tier_of(hit.entry.id) != "working":
        return cosine
    return nearness(cosine, hit.entry.length, weights)


def _has(window: Window | None, terms: Iterable[str]) -> tuple[str, ...]:
    parts = [part for part in window or () if part is not None]
    return tuple(term for term in terms if any(term in part.often for part in parts))


def _order(hit: _Hit, score: float) -> tuple[float, int, str, int]:
    return -score, -hit.entry.time, hit.stretch.span.timeline, hit.entry.seq


def _found(hit: _Hit, score: float, scores: Scores) -> Found:
    return Found(
        timeline=hit.stretch.span.timeline,
        seq=hit.entry.seq,
        scope=hit.stretch.scope,
        tier=tier_of(hit.entry.id),
        key=hit.entry.key,
        time=hit.entry.time,
        score=score,
        scores=scores,
    )


def _once(hits: Mapping[int, _Hit]) -> list[int]:
    """A fact that is on two paths is found on the first of them."""
    first: dict[str, int] = {}
    for id_ in sorted(hits, key=lambda id_: (hits[id_].stretch.order, id_)):
        first.setdefault(hits[id_].entry.key, id_)
    return [id_ for id_, hit in hits.items() if not hit.entry.key or first[hit.entry.key] == id_]

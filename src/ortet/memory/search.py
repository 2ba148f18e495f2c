"""Memories that answer a question, among those that can be seen from where it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from ortet.memory.candidates import Effort, Terms, candidates, choose
from ortet.memory.index import Index
from ortet.memory.lookup import Entry, Lookup, tier_of
from ortet.memory.records import Answer, Found, Path, Query, Scores, Span, Tier
from ortet.memory.scoring import Counted, Weights, bm25, count_terms, fuse, ranks
from ortet.memory.visible import Visible, see


class Near(msgspec.Struct, frozen=True):
    """Memories by meaning: (timeline, seq, cosine), the nearest first. `status` as in Answer."""

    places: list[tuple[str, int, float]]
    status: str = "all"


class Vectors(Protocol):
    """Finds by meaning. It never raises because an embedder fails or is late: `status` says so."""

    def rank(self, spans: Sequence[Span], tiers: Sequence[Tier], text: str, limit: int) -> Near: ...


class _Hit(NamedTuple):
    entry: Entry
    bm25: float
    terms: tuple[str, ...]


def search(
    index: Index,
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
    if vectors is not None and query.text.strip():
        spans = [span for path in paths for span in path.spans if span.upto > span.after]
        near = vectors.rank(spans, query.tiers, query.text, effort.documents)
    words = index.words.query_terms(query.text)
    with index.reading() as lookup:
        visible = see(lookup, paths, query)
        terms = choose(lookup, visible, words, effort)
        hits = _by_words(lookup, visible, terms, query=query, weights=weights, effort=effort)
        cosines = _by_meaning(lookup, visible, near, query, hits)
    return Answer(
        _fused(visible, hits, cosines, k=query.k, weights=weights, pruned=terms.pruned), near.status
    )


def _by_words(
    lookup: Lookup,
    visible: Visible,
    terms: Terms,
    *,
    query: Query,
    weights: Weights,
    effort: Effort,
) -> dict[int, _Hit]:
    """Scored exactly: documents by id, at most about `effort.documents`."""
    found: dict[int, Entry] = {}
    for some in candidates(lookup, visible, terms, weights, effort):
        found.update(_living(lookup, visible, lookup.entries(some), query))
        if len(found) >= effort.documents // 2:
            break
    beside = {id_: visible.beside(id_) for id_ in found}
    others = {id_ for pair in beside.values() for id_ in pair if id_ and id_ not in found}
    rarities = terms.rarities
    counted: dict[int, Counted] = {}
    for entries in (found, lookup.entries(others) if others else {}):
        for id_, entry in entries.items():
            often = count_terms(entry.words, entry.counts, rarities)
            counted[id_] = Counted(often, entry.length)
    hits: dict[int, _Hit] = {}
    for id_, entry in found.items():
        before, behind = (counted.get(other) for other in beside[id_])
        score = bm25(
            counted[id_],
            before,
            behind,
            rarities=rarities,
            average=visible.average(id_),
            weights=weights,
        )
        if score > 0:
            has = set(counted[id_].often)
            has.update(*(other.often for other in (before, behind) if other))
            hits[id_] = _Hit(entry, score, tuple(term for term in rarities if term in has))
    return hits


def _by_meaning(
    lookup: Lookup, visible: Visible, near: Near, query: Query, hits: dict[int, _Hit]
) -> dict[int, float]:
    """Cosines of what is near and can be seen; what words did not find joins the hits."""
    cosines: dict[int, float] = {}
    for timeline, seq, cosine in near.places:
        id_ = lookup.exactly(lookup.timeline(timeline)[0], seq)
        if visible.stretch(id_) is not None:
            cosines[id_] = cosine
    new = lookup.entries([id_ for id_ in cosines if id_ not in hits])
    for id_, entry in _living(lookup, visible, new, query).items():
        hits[id_] = _Hit(entry, 0.0, ())
    return {id_: cosine for id_, cosine in cosines.items() if id_ in hits}


def _living(
    lookup: Lookup, visible: Visible, entries: Mapping[int, Entry], query: Query
) -> dict[int, Entry]:
    """Those that are believed, and were valid when it is asked for."""
    keys = [entry.key for entry in entries.values() if entry.key]
    ended = {end.key for end in lookup.ends(keys) if visible.holds(end)}
    return {
        id_: entry
        for id_, entry in entries.items()
        if (not entry.key or entry.key not in ended) and _valid(entry, query)
    }


def _valid(entry: Entry, query: Query) -> bool:
    if query.at and entry.time > query.at:
        return False
    return not query.on or (entry.since <= query.on and (not entry.until or query.on < entry.until))


def _fused(
    visible: Visible,
    hits: Mapping[int, _Hit],
    cosines: Mapping[int, float],
    *,
    k: int,
    weights: Weights,
    pruned: tuple[str, ...],
) -> list[Found]:
    kept = _once(visible, hits)
    by_words = ranks({id_: hits[id_].bm25 for id_ in kept if hits[id_].bm25 > 0})
    by_meaning = ranks({id_: cosines[id_] for id_ in kept if id_ in cosines})
    by_time = ranks({id_: hits[id_].entry.time for id_ in kept})
    by_importance = ranks({id_: hits[id_].entry.importance for id_ in kept})
    lists = [
        (weights.bm25, by_words),
        (weights.cosine, by_meaning),
        (weights.recency, by_time),
        (weights.importance, by_importance),
    ]
    found = []
    for id_, score in fuse(kept, lists, flatness=weights.flatness).items():
        hit, stretch = hits[id_], visible.stretch(id_)
        assert stretch is not None
        found.append(
            Found(
                timeline=stretch.span.timeline,
                seq=hit.entry.seq,
                scope=stretch.scope,
                tier=tier_of(id_),
                key=hit.entry.key,
                time=hit.entry.time,
                score=score,
                scores=Scores(
                    bm25=hit.bm25,
                    bm25_rank=by_words.get(id_, 0),
                    cosine=cosines.get(id_, 0.0),
                    cosine_rank=by_meaning.get(id_, 0),
                    recency_rank=by_time[id_],
                    importance=hit.entry.importance,
                    terms=hit.terms,
                    pruned=pruned,
                ),
            )
        )
    found.sort(key=lambda one: (-one.score, -one.time, one.timeline, one.seq))
    return found[: max(k, 0)]


def _once(visible: Visible, hits: Mapping[int, _Hit]) -> list[int]:
    """A fact that is on two paths is found on the first of them."""
    order = {id(stretch): at for at, stretch in enumerate(visible.stretches)}
    first: dict[str, int] = {}
    place: dict[str, int] = {}
    for id_, hit in hits.items():
        key = hit.entry.key
        if key:
            at = order[id(visible.stretch(id_))]
            if key not in place or at < place[key]:
                first[key], place[key] = id_, at
    return [id_ for id_, hit in hits.items() if not hit.entry.key or first[hit.entry.key] == id_]

"""Search memories by words and meaning, among the documents that the query may see.

The documents with the rarest query terms, and their neighbours, are candidates. Only candidates are
scored.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from ortet.memory.base import IndexReader, SemanticMatches, SemanticRanker, TermPostings, WordIndex
from ortet.memory.lexical.scoring import (
    NeighbourWindow,
    TermFrequencies,
    Weights,
    bm25,
    count_terms,
    damped_cosine,
    fuse_ranks,
    inverse_document_frequency,
    ranks,
)
from ortet.memory.lexical.visibility import visible_documents, visible_spans
from ortet.memory.lexical.visible_documents import VisibleDocuments, VisibleRange
from ortet.memory.records import (
    DocumentRow,
    EventSpan,
    FactEndRow,
    MemoryMatch,
    Query,
    Scores,
    SearchResult,
    TimelinePath,
    tier_of,
)

MAX_TERMS = 64
"""Largest number of terms of a long query, the rarest ones."""

_SEMANTIC_OVERSAMPLING = 2
"""Factor for semantic candidates, because very short ones are dropped later."""
_RETRY_OVERSAMPLING = 16
"""Factor for a second search, if all semantic candidates were retracted facts."""


class SearchEffort(msgspec.Struct, frozen=True):
    """Limits of one search: `postings` read and `documents` scored.

    Document counts of terms are exact up to `counted`.
    """

    postings: int = 8000
    documents: int = 128
    counted: int = 3000

    def for_results(self, k: int) -> SearchEffort:
        """Return limits that are large enough for `k` results."""
        return msgspec.structs.replace(self, documents=max(self.documents, 2 * k))


class QueryTerms(msgspec.Struct, frozen=True):
    """Query terms that occur in visible documents, in query order, with their weight.

    Documents are searched by `chosen`, rarest first. `pruned` terms are too common for that. They
    count only in documents that other terms found.
    """

    rarities: dict[str, float]
    chosen: tuple[str, ...]
    pruned: tuple[str, ...]


def choose_terms(
    postings: TermPostings, total: int, words: Sequence[str], effort: SearchEffort
) -> QueryTerms:
    """Choose the rarest terms within the limits, at least one."""
    having = postings.count(words)
    rarest = sorted((count, word) for word, count in having.items() if count)[:MAX_TERMS]
    chosen: list[str] = []
    left = float(effort.postings)
    for count, word in rarest:
        if chosen and count > left:
            break
        chosen.append(word)
        left -= count
    considered = {word for _, word in rarest}
    return QueryTerms(
        {
            word: inverse_document_frequency(word, total, having[word])
            for word in words
            if word in considered
        },
        tuple(chosen),
        tuple(word for word in words if word in considered and word not in chosen),
    )


def find_candidates(
    postings: TermPostings,
    visible: VisibleDocuments,
    terms: QueryTerms,
    weights: Weights,
    effort: SearchEffort,
) -> Iterator[list[int]]:
    """Yield lists of candidate ids, best first, at most `effort.documents` each.

    The order uses the weights of the chosen terms in a document and its neighbours. Term frequency
    and length are not used here.
    """
    scores = _term_scores(postings, terms, effort.postings)
    yielded: set[int] = set()
    for seeds in _seed_batches(scores, effort.documents):
        window = _window(visible, scores, seeds, weights)
        best = top_ids(window, effort.documents)
        yield [id_ for id_ in best if id_ not in yielded]
        yielded.update(best)


def _seed_batches(scores: Mapping[int, float], batch_size: int) -> Iterator[list[int]]:
    """Yield batches of ids by score, then nearest first; both sorts are stable.

    Sorting all ids is expensive and rarely needed, so that the first batch avoids it.
    """
    yield top_ids(scores, batch_size)
    if len(scores) > batch_size:
        rest = sorted(scores, key=scores.__getitem__, reverse=True)
        yield from (
            rest[start : start + batch_size] for start in range(batch_size, len(rest), batch_size)
        )


def top_ids(scores: Mapping[int, float], limit: int) -> list[int]:
    """Return the ids with the largest scores, largest first; of equal ones the first.

    Few scores are distinct. Counting them is cheaper than comparing ids one by one.
    """
    if len(scores) <= limit:
        return sorted(scores, key=scores.__getitem__, reverse=True)
    counts = Counter(scores.values())
    left = limit
    least = max(counts)
    for value in sorted(counts, reverse=True):
        least = value
        if counts[value] >= left:
            break
        left -= counts[value]
    above = [id_ for id_, value in scores.items() if value > least]
    equal = (id_ for id_, value in scores.items() if value == least)
    return sorted(above, key=scores.__getitem__, reverse=True) + list(islice(equal, left))


def _term_scores(postings: TermPostings, terms: QueryTerms, limit: int) -> dict[int, float]:
    scores: dict[int, float] = {}
    for number, term in enumerate(terms.chosen):
        tells = terms.rarities[term]
        # Only the first term can exceed the limit.
        ids = postings.ids_with_term(term) if number else postings.nearest(term, limit)
        new = dict.fromkeys(ids, tells)
        for id_ in scores.keys() & new.keys():
            new[id_] = scores[id_] + tells
        scores.update(new)
    return scores


def _window(
    visible: VisibleDocuments, scores: Mapping[int, float], seeds: Sequence[int], weights: Weights
) -> dict[int, float]:
    """Return scores that include neighbours, for the seeds and their neighbours."""
    around = visible.neighbours(seeds)
    others = {id_: None for pair in around.values() for id_ in pair if id_ and id_ not in around}
    around |= visible.neighbours(id_ for id_ in others if visible.range_of(id_) is not None)
    get = scores.get
    return {
        id_: get(id_, 0.0) + weights.before * get(before, 0.0) + weights.behind * get(behind, 0.0)
        for id_, (before, behind) in around.items()
    }


class _ScoredDocument(NamedTuple):
    entry: DocumentRow
    visible_range: VisibleRange
    bm25: float
    window: NeighbourWindow | None


def search(
    index: WordIndex,
    paths: Sequence[TimelinePath],
    query: Query,
    *,
    ranker: SemanticRanker | None = None,
    weights: Weights | None = None,
    effort: SearchEffort | None = None,
) -> SearchResult:
    """Return the `query.k` best matches, best first.

    Documents outside the paths influence neither the matches nor their scores.

    Raises:
        IndexLost: If the index does not contain all events of the paths.
    """
    weights = weights or Weights()
    effort = (effort or SearchEffort()).for_results(query.k)
    near = SemanticMatches([], "")
    limit = _SEMANTIC_OVERSAMPLING * effort.documents
    if ranker is not None and query.text.strip():
        spans = _searched_spans(index, paths, query)
        near = ranker.rank(spans, query.tiers, query.text, limit)
    answer = _search_index(index, paths, query, matches=near, weights=weights, effort=effort)
    if ranker is not None and len(near.places) >= limit and len(answer.found) < query.k:
        # Retracted facts took all places; search again with a larger limit.
        near = ranker.rank(spans, query.tiers, query.text, limit * _RETRY_OVERSAMPLING)
        answer = _search_index(index, paths, query, matches=near, weights=weights, effort=effort)
    return answer


def _search_index(
    index: WordIndex,
    paths: Sequence[TimelinePath],
    query: Query,
    *,
    matches: SemanticMatches,
    weights: Weights,
    effort: SearchEffort,
) -> SearchResult:
    words = index.tokenizer.query_terms(query.text)
    with index.open_reader() as lookup:
        visible = visible_documents(lookup, paths, query)
        postings = lookup.postings(visible, limit=effort.counted)
        terms = choose_terms(postings, visible.total, words, effort)
        some = find_candidates(postings, visible, terms, weights, effort)
        candidates = _valid_candidates(lookup, visible, some, query, effort.documents // 2)
        hits = _score_documents(lookup, visible, candidates, terms.rarities, weights)
        cosines = _add_semantic_matches(lookup, visible, matches, query, hits)
    return SearchResult(
        _fuse_results(hits, cosines, k=query.k, weights=weights, terms=terms), matches.status
    )


def _searched_spans(
    index: WordIndex, paths: Sequence[TimelinePath], query: Query
) -> list[EventSpan]:
    """Return the spans of the paths, cut by time.

    Documents outside the requested time must not take places of others.
    """
    if not query.at and not query.after:
        heard = (path for path in paths if path.tiers)
        return [span for path in heard for span in path.spans if span.upto > span.after]
    with index.open_reader() as lookup:
        return visible_spans(visible_documents(lookup, paths, query), lookup)


def _valid_candidates(
    reader: IndexReader,
    visible: VisibleDocuments,
    batches: Iterable[list[int]],
    query: Query,
    limit: int,
) -> dict[int, DocumentRow]:
    """Return candidates that are not retracted and are valid, by id."""
    valid: dict[int, DocumentRow] = {}
    for ids in batches:
        valid.update(_believed_entries(reader, visible, reader.entries(ids), query))
        if len(valid) >= limit:
            break
    return valid


def _score_documents(
    reader: IndexReader,
    visible: VisibleDocuments,
    entries: Mapping[int, DocumentRow],
    rarities: Mapping[str, float],
    weights: Weights,
) -> dict[int, _ScoredDocument]:
    """Return scores with term frequency, length and neighbours."""
    beside = visible.neighbours(entries)
    others = {id_ for pair in beside.values() for id_ in pair if id_ and id_ not in entries}
    own = ((id_, entry.length, entry.words, entry.counts) for id_, entry in entries.items())
    counted = {
        id_: TermFrequencies(count_terms(words, counts, rarities), length)
        for id_, length, words, counts in chain(own, reader.contents(others))
    }
    hits: dict[int, _ScoredDocument] = {}
    for id_, entry in entries.items():
        before, behind = beside[id_]
        window = NeighbourWindow(counted[id_], counted.get(before), counted.get(behind))
        score = bm25(
            window, rarities=rarities, average=visible.average_length(id_), weights=weights
        )
        visible_range = visible.range_of(id_)
        if score > 0 and visible_range is not None:
            hits[id_] = _ScoredDocument(entry, visible_range, score, window)
    return hits


def _add_semantic_matches(
    reader: IndexReader,
    visible: VisibleDocuments,
    matches: SemanticMatches,
    query: Query,
    hits: dict[int, _ScoredDocument],
) -> dict[int, float]:
    """Return cosines of visible matches. Matches that words did not find are added to `hits`."""
    numbers = reader.timelines({timeline for timeline, _, _ in matches.places})
    places: dict[str, list[int]] = {}
    for timeline, seq, _ in matches.places:
        places.setdefault(timeline, []).append(seq)
    ids = reader.document_ids({numbers[name][0]: places[name] for name in numbers})
    cosines: dict[int, float] = {}
    seen: dict[int, VisibleRange] = {}
    for timeline, seq, cosine in matches.places:
        id_ = ids.get((numbers[timeline][0], seq), 0) if timeline in numbers else 0
        visible_range = visible.range_of(id_)
        if visible_range is not None:
            cosines[id_], seen[id_] = cosine, visible_range
    new = reader.entries((id_ for id_ in cosines if id_ not in hits), without_words=True)
    for id_, entry in _believed_entries(reader, visible, new, query).items():
        hits[id_] = _ScoredDocument(entry, seen[id_], 0.0, None)
    return {id_: cosine for id_, cosine in cosines.items() if id_ in hits}


def _believed_entries(
    reader: IndexReader, visible: VisibleDocuments, entries: Mapping[int, DocumentRow], query: Query
) -> dict[int, DocumentRow]:
    """Return entries that are not retracted and are valid at the requested time."""
    keys = [entry.key for entry in entries.values() if entry.key]
    ends: dict[str, list[FactEndRow]] = {}
    for end in reader.ends(keys):
        ends.setdefault(end.key, []).append(end)
    return {
        id_: entry
        for id_, entry in entries.items()
        if _valid(entry, query)
        and _is_in_scope(visible, entry, query)
        and not any(visible.is_ended_by(e, id_) for e in ends.get(entry.key, ()))
    }


def _valid(entry: DocumentRow, query: Query) -> bool:
    if query.at and entry.time > query.at:
        return False
    if not query.on:
        return True
    return (not entry.since or entry.since <= query.on) and (
        not entry.until or query.on < entry.until
    )


def _is_in_scope(visible: VisibleDocuments, entry: DocumentRow, query: Query) -> bool:
    """Return True if an entry belongs to the requested scope.

    A fact is found in its scope also before it was shared there.
    """
    visible_range = visible.range_of(entry.id)
    if query.scope is None or visible_range is None:
        return True
    if visible_range.scope == query.scope:
        return not entry.scope or tier_of(entry.id) != "semantic"
    return entry.scope == query.scope


def _fuse_results(
    hits: Mapping[int, _ScoredDocument],
    cosines: Mapping[int, float],
    *,
    k: int,
    weights: Weights,
    terms: QueryTerms,
) -> list[MemoryMatch]:
    unique = _first_by_key(hits)
    by_words = ranks({id_: hits[id_].bm25 for id_ in unique if hits[id_].bm25 > 0})
    by_meaning = ranks(
        {id_: _semantic_score(hits[id_], cosines[id_], weights) for id_ in unique if id_ in cosines}
    )
    by_time = ranks({id_: hits[id_].entry.time for id_ in unique})
    by_importance = ranks({id_: hits[id_].entry.importance for id_ in unique})
    lists = [
        (weights.bm25, by_words),
        (weights.cosine, by_meaning),
        (weights.recency, by_time),
        (weights.importance, by_importance),
    ]
    fused = fuse_ranks(unique, lists, flatness=weights.flatness)
    best = heapq.nsmallest(max(k, 0), unique, key=lambda id_: _order(hits[id_], fused[id_]))
    return [
        _to_match(
            hits[id_],
            fused[id_],
            Scores(
                bm25=hits[id_].bm25,
                bm25_rank=by_words.get(id_, 0),
                cosine=cosines.get(id_, 0.0),
                cosine_rank=by_meaning.get(id_, 0),
                recency_rank=by_time[id_],
                importance=hits[id_].entry.importance,
                terms=_matched_terms(hits[id_].window, terms.rarities),
                pruned=terms.pruned,
            ),
        )
        for id_ in best
    ]


def _semantic_score(hit: _ScoredDocument, cosine: float, weights: Weights) -> float:
    """Return the cosine, damped for messages. Facts and episodes are short but meaningful."""
    if tier_of(hit.entry.id) != "working":
        return cosine
    return damped_cosine(cosine, hit.entry.length, weights)


def _matched_terms(window: NeighbourWindow | None, terms: Iterable[str]) -> tuple[str, ...]:
    parts = [part for part in window or () if part is not None]
    return tuple(term for term in terms if any(term in part.frequencies for part in parts))


def _order(hit: _ScoredDocument, score: float) -> tuple[float, int, str, int]:
    return -score, -hit.entry.time, hit.visible_range.span.timeline, hit.entry.seq


def _to_match(hit: _ScoredDocument, score: float, scores: Scores) -> MemoryMatch:
    return MemoryMatch(
        timeline=hit.visible_range.span.timeline,
        seq=hit.entry.seq,
        scope=hit.visible_range.scope,
        tier=tier_of(hit.entry.id),
        key=hit.entry.key,
        time=hit.entry.time,
        score=score,
        scores=scores,
    )


def _first_by_key(hits: Mapping[int, _ScoredDocument]) -> list[int]:
    """Return ids with a fact on two paths only once, on the first path."""
    first: dict[str, int] = {}
    for id_ in sorted(hits, key=lambda id_: (hits[id_].visible_range.order, id_)):
        first.setdefault(hits[id_].entry.key, id_)
    return [id_ for id_, hit in hits.items() if not hit.entry.key or first[hit.entry.key] == id_]

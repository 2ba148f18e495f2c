"""Chooses the documents to score: those with the rarest query terms, and their neighbours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from ortet.memory.base import TermPostings
from ortet.memory.lexical.scoring import Weights, inverse_document_frequency
from ortet.memory.lexical.visible_documents import VisibleDocuments

MAX_TERMS = 64
"""Largest number of terms of a long query, the rarest ones."""


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
    kept = {word for _, word in rarest}
    return QueryTerms(
        {
            word: inverse_document_frequency(word, total, having[word])
            for word in words
            if word in kept
        },
        tuple(chosen),
        tuple(word for word in words if word in kept and word not in chosen),
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
    told = _term_scores(postings, terms, effort.postings)
    given: set[int] = set()
    for seeds in _seed_batches(told, effort.documents):
        window = _window(visible, told, seeds, weights)
        best = top_ids(window, effort.documents)
        yield [id_ for id_ in best if id_ not in given]
        given.update(best)


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
    told: dict[int, float] = {}
    for number, term in enumerate(terms.chosen):
        tells = terms.rarities[term]
        # Only the first term can exceed the limit.
        ids = postings.ids_with_term(term) if number else postings.nearest(term, limit)
        new = dict.fromkeys(ids, tells)
        for id_ in told.keys() & new.keys():
            new[id_] = told[id_] + tells
        told.update(new)
    return told


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

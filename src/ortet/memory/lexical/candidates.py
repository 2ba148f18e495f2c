"""Which documents are worth scoring: those with the rarest terms of a question, and beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from ortet.memory.base import TermPostings
from ortet.memory.lexical.scoring import Weights, inverse_document_frequency
from ortet.memory.lexical.visibility import VisibleDocuments

MAX_TERMS = 64
"""Of a long question, as many of its rarest terms are looked for."""


class SearchEffort(msgspec.Struct, frozen=True):
    """How much is read for one question: `postings` of its terms, and `documents` scored. Terms
    are counted exactly up to `counted` documents."""

    postings: int = 8000
    documents: int = 128
    counted: int = 3000

    def for_results(self, k: int) -> SearchEffort:
        """Enough for `k` answers."""
        return msgspec.structs.replace(self, documents=max(self.documents, 2 * k))


class QueryTerms(msgspec.Struct, frozen=True):
    """The terms of a question that occur, in its order, with what each of them tells.

    Documents are looked for by `chosen`, the rarest first; those `pruned` are too common for that,
    and count only in what the others have found.
    """

    rarities: dict[str, float]
    chosen: tuple[str, ...]
    pruned: tuple[str, ...]


def choose_terms(
    postings: TermPostings, total: int, words: Sequence[str], effort: SearchEffort
) -> QueryTerms:
    """As many terms as the effort allows, the rarest first, and at least one."""
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
    """Ids of documents by what the chosen terms in them and beside them tell, without how often
    and how long: lists of `effort.documents` at most, the most telling first."""
    told = _term_scores(postings, terms, effort.postings)
    given: set[int] = set()
    for seeds in _seed_batches(told, effort.documents):
        window = _window(visible, told, seeds, weights)
        best = top_ids(window, effort.documents)
        yield [id_ for id_ in best if id_ not in given]
        given.update(best)


def _seed_batches(scores: Mapping[int, float], batch_size: int) -> Iterator[list[int]]:
    """The most telling first, of equals the nearest: both ways of sorting keep their order. To
    sort all costs more, and is seldom needed."""
    yield top_ids(scores, batch_size)
    if len(scores) > batch_size:
        rest = sorted(scores, key=scores.__getitem__, reverse=True)
        yield from (
            rest[start : start + batch_size] for start in range(batch_size, len(rest), batch_size)
        )


def top_ids(scores: Mapping[int, float], limit: int) -> list[int]:
    """The keys of the largest values, of equal ones the first, the largest first. Few values are
    distinct, so it is cheaper to count them than to compare keys one by one."""
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
        # Only the first can have more than all are allowed.
        ids = postings.ids_with_term(term) if number else postings.nearest(term, limit)
        new = dict.fromkeys(ids, tells)
        for id_ in told.keys() & new.keys():
            new[id_] = told[id_] + tells
        told.update(new)
    return told


def _window(
    visible: VisibleDocuments, scores: Mapping[int, float], seeds: Sequence[int], weights: Weights
) -> dict[int, float]:
    """What is told by documents together with those beside them; those beside the seeds too."""
    around = visible.neighbours(seeds)
    others = {id_: None for pair in around.values() for id_ in pair if id_ and id_ not in around}
    around |= visible.neighbours(id_ for id_ in others if visible.range_of(id_) is not None)
    get = scores.get
    return {
        id_: get(id_, 0.0) + weights.before * get(before, 0.0) + weights.behind * get(behind, 0.0)
        for id_, (before, behind) in around.items()
    }

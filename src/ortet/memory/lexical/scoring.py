"""Scores of memories: BM25 of a message with its neighbours, and fusion of ranked lists."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

import msgspec

Key = TypeVar("Key", bound=Hashable)


class Weights(msgspec.Struct, frozen=True):
    """Weights of a score.

    The words of a message count 1, those of the message before and after less. In the fusion,
    recency and importance only break ties.
    """

    before: float = 0.5
    behind: float = 0.1
    k1: float = 1.0
    b: float = 0.4
    bm25: float = 1.0
    cosine: float = 0.5  # see `Embedder.trust`
    recency: float = 0.02
    importance: float = 0.02
    short: float = 15.0  # length in tokens at which the cosine of a message counts half
    flatness: float = 10.0  # the first rank is worth 1 / (flatness + 1)


class TermFrequencies(NamedTuple):
    """Frequencies of the query terms in one document, and its length in tokens."""

    frequencies: Mapping[str, int]
    length: int


class NeighbourWindow(NamedTuple):
    """A document with its neighbours. A missing neighbour is None and costs nothing."""

    own: TermFrequencies
    before: TermFrequencies | None = None
    behind: TermFrequencies | None = None


# At the start of a conversation "and" is as rare as other words. Therefore this number of documents
# is assumed in addition, with stop words in one of three.
_PRIOR_DOCUMENTS = 200
_STEMS = """
    a about after all also am an and ani ar as at be becaus been befor but by can could did do doe
    dont for from get go got ha had have he her here hi him how i if im in into is it just like me
    more my no not now of on or our out over sai said she so some than that the thei their them
    then there these thi to too up us veri wa we were what when where which who whom why will with
    would you your
"""
_STOP_WORDS = frozenset(_STEMS.split())
"""English stop words in stemmed form."""


def inverse_document_frequency(term: str, total: int, document_frequency: float) -> float:
    """Return the weight of a term in `document_frequency` of `total` documents; at least 0."""
    total += _PRIOR_DOCUMENTS
    document_frequency = min(
        document_frequency + (_PRIOR_DOCUMENTS / 3 if term in _STOP_WORDS else 0), total
    )
    return math.log(1 + (total - document_frequency + 0.5) / (document_frequency + 0.5))


def count_terms(words: str, counts: bytes | None, terms: Mapping[str, float]) -> dict[str, int]:
    """Return the terms that occur in `words`, with their counts."""
    listed = words.split(" ")
    has = terms.keys() & listed
    if counts is None:
        return dict.fromkeys(has, 1)
    return {word: counts[listed.index(word)] for word in has}


def bm25(
    window: NeighbourWindow, *, rarities: Mapping[str, float], average: float, weights: Weights
) -> float:
    """Return BM25 of a document with its neighbours.

    `average` is the average length of documents of its tier.
    """
    own, before, behind = window
    often: dict[str, float] = dict(own.frequencies)
    length, share = float(own.length), 1.0
    for beside, weight in ((before, weights.before), (behind, weights.behind)):
        if beside is None:
            continue
        for term, count in beside.frequencies.items():
            often[term] = often.get(term, 0.0) + weight * count
        length += weight * beside.length
        share += weight
    k1 = weights.k1
    relative = length / (average * share) if average else 1.0
    norm = k1 * (1 - weights.b + weights.b * relative)
    # Exact summation: the order of terms must not decide between equal documents.
    return math.fsum(
        [rarities[term] * count * (k1 + 1) / (count + norm) for term, count in often.items()]
    )


def damped_cosine(cosine: float, length: int, weights: Weights) -> float:
    """Return the cosine, damped for short messages.

    Very short messages, such as "And then?", are similar to any query and answer none.
    """
    return cosine * length / (length + weights.short) if cosine > 0 else cosine


def ranks(values: Mapping[Key, float]) -> dict[Key, int]:
    """Return ranks: the number of values that are at least as good. A unique best has rank 1.

    Equal values share the worst rank. A thousand documents with one common word are worth little.
    """
    counts = Counter(values.values())
    ordered = sorted(counts, reverse=True)
    places = accumulate(counts[value] for value in ordered)
    place_of = dict(zip(ordered, places, strict=True))
    return {key: place_of[value] for key, value in values.items()}


def fuse_ranks(
    keys: Iterable[Key], lists: Sequence[tuple[float, Mapping[Key, int]]], *, flatness: float
) -> dict[Key, float]:
    """Return weighted sums of reciprocal ranks. A key that is not in a list gets 0 from it."""
    fused = dict.fromkeys(keys, 0.0)
    for weight, ranked in lists:
        if weight:
            for key in fused.keys() & ranked.keys():
                fused[key] += weight / (flatness + ranked[key])
    return fused

"""How well a memory answers: BM25 of a turn with those beside it, and lists fused by rank."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

Key = TypeVar("Key", bound=Hashable)


class Weights(msgspec.Struct, frozen=True):
    """What counts how much. Of a turn: its own words 1, those of the turn before and of the turn
    after less. Of the lists that are fused: recency and importance only decide between likes."""

    before: float = 0.5
    behind: float = 0.25
    k1: float = 1.2
    b: float = 0.6
    bm25: float = 1.0
    cosine: float = 0.5
    recency: float = 0.02
    importance: float = 0.02
    flatness: float = 60.0  # of ranks: the first is worth 1 / (flatness + 1)


class Counted(NamedTuple):
    """How often the terms of a query are in one document, and its length in tokens."""

    often: Mapping[str, int]
    length: int


NOTHING = Counted({}, 0)


def rarity(total: int, having: float) -> float:
    """What a term tells that `having` of `total` documents have; never less than nothing."""
    return math.log(1 + (total - min(having, total) + 0.5) / (having + 0.5))


def count_terms(words: str, counts: bytes | None, terms: Mapping[str, float]) -> dict[str, int]:
    """Those of the terms that are among distinct words, with their counts."""
    if counts is None:
        return {word: 1 for word in words.split(" ") if word in terms}
    return {
        word: count for word, count in zip(words.split(" "), counts, strict=True) if word in terms
    }


def bm25(
    own: Counted,
    before: Counted | None,
    behind: Counted | None,
    *,
    rarities: Mapping[str, float],
    average: float,
    weights: Weights,
) -> float:
    """BM25 of a document with its neighbours. None: it has none there, which costs it nothing;
    `average` is the length of documents of its kind."""
    if before is None and behind is None:
        often: Mapping[str, float] = own.often
        length, typical = float(own.length), average
    else:
        often, length, typical = _window(own, before, behind, average, weights)
    k1 = weights.k1
    norm = k1 * (1 - weights.b + weights.b * length / typical) if typical else k1
    return sum(rarities[term] * count * (k1 + 1) / (count + norm) for term, count in often.items())


def _window(
    own: Counted,
    before: Counted | None,
    behind: Counted | None,
    average: float,
    weights: Weights,
) -> tuple[Mapping[str, float], float, float]:
    often: dict[str, float] = dict(own.often)
    length, share = float(own.length), 1.0
    for beside, weight in ((before, weights.before), (behind, weights.behind)):
        if beside is None or not weight:
            continue
        for term, count in beside.often.items():
            often[term] = often.get(term, 0.0) + weight * count
        length += weight * beside.length
        share += weight
    return often, length, average * share


def ranks(values: Mapping[Key, float]) -> dict[Key, int]:
    """Ranks from 1, the highest value first; equal values have the same rank."""
    ranked: dict[Key, int] = {}
    rank, last = 0, math.nan
    for place, (key, value) in enumerate(
        sorted(values.items(), key=lambda item: item[1], reverse=True), 1
    ):
        if value != last:
            rank, last = place, value
        ranked[key] = rank
    return ranked


def fuse(
    keys: Iterable[Key], lists: Sequence[tuple[float, Mapping[Key, int]]], *, flatness: float
) -> dict[Key, float]:
    """Weighted reciprocal ranks. What is not in a list gets nothing of it."""
    return {
        key: sum(
            weight / (flatness + ranked[key])
            for weight, ranked in lists
            if weight and key in ranked
        )
        for key in keys
    }

"""How good a ranking is: recall, reciprocal rank and discounted gain of the turns that answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

DEPTH = 20
"""So many ids are asked of every system."""


class Quality(msgspec.Struct, frozen=True):
    """Of one question, or the mean of many."""

    recall5: float
    recall10: float
    recall20: float
    mrr: float
    ndcg10: float


def of(ranked: Sequence[int], evidence: Sequence[int]) -> Quality:
    """All evidence counts alike. An id that is named twice counts where it came first."""
    ranked = list(dict.fromkeys(ranked))
    return Quality(
        recall(ranked, evidence, 5),
        recall(ranked, evidence, 10),
        recall(ranked, evidence, DEPTH),
        reciprocal_rank(ranked, evidence),
        ndcg(ranked, evidence, 10),
    )


def recall(ranked: Sequence[int], evidence: Sequence[int], k: int) -> float:
    """The part of the evidence that is among the first k."""
    return len(set(ranked[:k]) & set(evidence)) / len(set(evidence))


def reciprocal_rank(ranked: Sequence[int], evidence: Sequence[int]) -> float:
    wanted = set(evidence)
    return next((1 / rank for rank, one in enumerate(ranked, 1) if one in wanted), 0.0)


def ndcg(ranked: Sequence[int], evidence: Sequence[int], k: int) -> float:
    wanted = set(evidence)
    gain = sum(1 / math.log2(rank + 1) for rank, one in enumerate(ranked[:k], 1) if one in wanted)
    best = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(wanted), k) + 1))
    return gain / best


def mean(many: Iterable[Quality]) -> Quality:
    rows = [msgspec.structs.astuple(one) for one in many]
    if not rows:
        raise ValueError("nothing was asked")
    return Quality(*(sum(column) / len(rows) for column in zip(*rows, strict=True)))


def by_kind(found: Sequence[tuple[str, Quality]]) -> Mapping[str, Quality]:
    """The mean of each kind, in the order they first appear, and of all questions as "all"."""
    kinds = dict.fromkeys(kind for kind, _ in found)
    means = {kind: mean(one for name, one in found if name == kind) for kind in kinds}
    return {**means, "all": mean(one for _, one in found)}

"""Bytes for numbers: no cosine is outside its bounds, so exactly the nearest are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ortet.memory.records import EventSpan
from ortet.memory.vectors.matrix import (
    QueryVector,
    TierVectors,
    VectorMatrix,
    nearest_documents,
    quantise,
    to_float32,
)


def _made(kind: str, count: int, size: int) -> Any:
    """Vectors of length 1 as they are kept, and the length they have so."""
    random = np.random.default_rng(size)
    rows = random.standard_normal((count, size))
    if kind == "spiky":  # one number is nearly all of it: the others are hardly told apart
        rows[:, 0] += 40
    if kind == "sparse":
        rows *= random.random((count, size)) < 0.1
        rows[:, 0] += 1e-3
    if kind == "alike":
        rows = rows[:1] + rows * 1e-3
    half = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    return half, np.sqrt(np.square(half, dtype=np.float64).sum(axis=1))


KINDS = ("usual", "spiky", "sparse", "alike")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 3, 64, 256, 1536])
def test_no_cosine_is_out_of_bounds(kind: str, size: int) -> None:
    half, length = _made(kind, 700, size)
    rows = quantise(half, length)
    exact = to_float32(half, length)
    for vector in exact[:5]:
        least, most = np.empty(700, np.float32), np.empty(700, np.float32)
        QueryVector(vector).bound_cosines(rows, least, most)
        true = exact.astype(np.float64) @ vector.astype(np.float64)
        assert (least <= true).all()
        assert (true <= most).all()
        assert (most - least < 2.1 * size**0.5 / 127 + 1e-3).all()  # and they tell something


@pytest.mark.parametrize("kind", KINDS)
def test_nearest_documents_equal_a_search_of_all(kind: str) -> None:
    """Over borders of blocks, with gaps, put in pieces, of two lines."""
    count = 9000
    half, length = _made(kind, count, 32)
    matrix = VectorMatrix(1 << 30)
    seqs = [2 * number + 1 for number in range(count)]
    line = matrix.tier_vectors(EventSpan("a", 0, 2 * count), "working")
    line.add(seqs, 2 * count)
    without = set(range(5, count, 100))
    here = [number for number in range(count) if number not in without]
    for start in range(0, len(here), 999):
        some = here[start : start + 999]
        rows = quantise(half[some], length[some])
        matrix.put("a", "working", [seqs[one] for one in some], rows)
    matrix.put("a", "working", [seqs[one] for one in sorted(without)], None)
    other = matrix.tier_vectors(EventSpan("b", 0, 3), "semantic")
    other.add([3], 3)
    matrix.put("b", "semantic", [2, 3], quantise(half[:2], length[:2]))  # 2 is no document
    exact = to_float32(half, length).astype(np.float64)
    spans = [EventSpan("a", 8, 2 * count - 8), EventSpan("b", 0, 3)]
    for asked in (0, 5, 17):
        query = to_float32(half, length)[asked]
        places = [("a", seqs[one], one) for one in here if 8 < seqs[one] <= 2 * count - 8]
        places.append(("b", 3, 1))
        product = {one: float((exact[one] * query.astype(np.float64)).sum()) for *_, one in places}
        wanted = sorted((-product[one], -seq, name) for name, seq, one in places)
        for limit in (1, 256, 2 * count):
            found = nearest_documents(
                matrix.visible_rows(spans, ("working", "semantic")), query, limit
            )
            assert [(-one.cosine, -one.seq, one.timeline) for one in found] == wanted[:limit]


def test_the_order_of_puts_does_not_change_the_cosines() -> None:
    half, length = _made("usual", 40, 8)
    rows = quantise(half, length)
    lines = []
    for order in (range(40), reversed(range(40))):
        line = TierVectors(0)
        line.add(range(1, 41), 40)
        for one in order:
            line.put([one + 1], rows.select([one]))
        lines.append(line)
    query = QueryVector(to_float32(half, length)[7])
    all_ = np.arange(40)
    first, second = (line.cosines(all_, query.exact).tolist() for line in lines)
    assert first == second
    assert lines[0].size_bytes == lines[1].size_bytes > 0

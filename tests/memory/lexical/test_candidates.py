"""Which documents are looked at first."""

from __future__ import annotations

import heapq

from hypothesis import given
from hypothesis import strategies as st

from ortet.memory.lexical.candidates import top_ids

VALUES = st.sampled_from([0.5, 1.0, 1.5, 2.25])


@given(st.dictionaries(st.integers(1, 60), VALUES), st.integers(1, 70))
def test_top_candidates_are_the_largest_scores_and_the_first_of_equals(
    told: dict[int, float], many: int
) -> None:
    assert top_ids(told, many) == heapq.nlargest(many, told, key=told.__getitem__)

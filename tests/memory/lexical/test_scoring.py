"""Scores: rare words tell more, neighbours help, length is relative, likes are told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortet.memory.lexical.scoring import (
    NeighbourWindow,
    TermFrequencies,
    Weights,
    bm25,
    count_terms,
    fuse_ranks,
    inverse_document_frequency,
    ranks,
)

WEIGHTS = Weights()
RARITIES = {"zebra": 5.0, "dog": 2.0, "the": 0.1}


def score(
    own: TermFrequencies,
    before: TermFrequencies | None = None,
    behind: TermFrequencies | None = None,
    *,
    average: float = 10.0,
    weights: Weights = WEIGHTS,
) -> float:
    window = NeighbourWindow(own, before, behind)
    return bm25(window, rarities=RARITIES, average=average, weights=weights)


class TestRarity:
    def test_rare_terms_have_a_higher_weight(self) -> None:
        told = [
            inverse_document_frequency("zebra", 1000, having) for having in (1, 10, 100, 500, 1000)
        ]
        assert told == sorted(told, reverse=True)
        assert told[-1] > 0

    def test_common_words_have_a_low_weight_from_the_first_message(self) -> None:
        assert inverse_document_frequency("and", 3, 1) < inverse_document_frequency("zebra", 3, 3)
        assert inverse_document_frequency("and", 100_000, 10) == pytest.approx(
            inverse_document_frequency("zebra", 100_000, 10 + 200 / 3), rel=0.01
        )

    @given(st.integers(0, 10**9), st.floats(0, 1e10))
    def test_rarity_is_always_positive(self, total: int, having: float) -> None:
        assert inverse_document_frequency("the", total, having) > 0


class TestCounting:
    def test_without_counts_each_term_counts_once(self) -> None:
        assert count_terms("the dog barks", None, RARITIES) == {"the": 1, "dog": 1}

    def test_terms_count_as_often_as_the_counts_say(self) -> None:
        assert count_terms("the dog barks", bytes([3, 1, 9]), RARITIES) == {"the": 3, "dog": 1}

    def test_an_empty_text_has_no_terms(self) -> None:
        assert count_terms("", None, RARITIES) == {}


class TestWindow:
    def test_the_window_score_equals_a_hand_computed_bm25(self) -> None:
        plain = Weights(before=0.5, behind=0.0, k1=1.0, b=0.5)
        alone = score(TermFrequencies({"dog": 1}, 20), weights=plain)
        assert alone == pytest.approx(2.0 * 1 * 2 / (1 + 1.5))
        beside = score(
            TermFrequencies({"dog": 1}, 10), TermFrequencies({"zebra": 2}, 10), weights=plain
        )
        assert beside == pytest.approx(2.0 * 1 * 2 / (1 + 1) + 5.0 * 1 * 2 / (1 + 1))

    def test_own_words_score_higher_than_words_of_neighbours(self) -> None:
        has, other = TermFrequencies({"zebra": 1}, 10), TermFrequencies({}, 10)
        own = score(has, other, other)
        behind_it = score(other, has, other)
        before_it = score(other, other, has)
        assert own > behind_it > before_it > 0

    def test_a_missing_neighbour_does_not_lower_the_score(self) -> None:
        average = TermFrequencies({}, 10)
        own = TermFrequencies({"zebra": 1}, 10)
        assert score(own) == pytest.approx(score(own, average, average))

    def test_length_is_compared_with_the_average_of_its_tier(self) -> None:
        short, long = TermFrequencies({"zebra": 1}, 5), TermFrequencies({"zebra": 1}, 200)
        assert score(short, average=5) == pytest.approx(score(long, average=200))
        assert score(short, average=10) > score(TermFrequencies({"zebra": 1}, 20), average=10)

    def test_the_order_of_terms_does_not_matter(self) -> None:
        terms = {"zebra": 1, "dog": 2, "the": 7}
        turned = dict(reversed(terms.items()))
        assert score(TermFrequencies(terms, 9)) == score(TermFrequencies(turned, 9))


class TestFusion:
    def test_equal_scores_have_the_same_rank(self) -> None:
        assert ranks({"a": 1.0, "b": 3.0, "c": 1.0, "d": 0.5}) == {"b": 1, "a": 3, "c": 3, "d": 4}
        assert ranks({}) == {}

    def test_fuse_adds_weighted_reciprocal_ranks(self) -> None:
        fused = fuse_ranks("ab", [(1.0, {"a": 1}), (0.5, {"a": 2, "b": 1})], flatness=9)
        assert fused == pytest.approx({"a": 1 / 10 + 0.5 / 11, "b": 0.5 / 10})

    def test_recency_and_importance_only_order_equal_scores(self) -> None:
        """What is best by words stays it, though it be the oldest and least of a hundred."""
        by_words = {number: number + 1 for number in range(100)}
        worst_last = {number: 100 - number for number in range(100)}
        lists = [(1.0, by_words), (WEIGHTS.recency, worst_last), (WEIGHTS.importance, worst_last)]
        fused = fuse_ranks(range(100), lists, flatness=WEIGHTS.flatness)
        assert sorted(fused, key=fused.__getitem__)[-3:] == [2, 1, 0]

"""Two ways to say the same are alike; another number, a no, another order are not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortet.memory.extraction.contradictions import MIN_SIMILARITY, NearDuplicateIndex, similarity

SAME = [
    ("tests need PYTHONPATH=src", "The tests need PYTHONPATH=src."),
    ("tests need PYTHONPATH=src", "the tests need PYTHONPATH=src to run"),
    ("Anna prefers tabs", "Anna really prefers tabs"),
    ("the staging database is called orders_stg", "staging database is called orders_stg!"),
    ("我喜欢喝咖啡", "我喜欢喝咖啡。"),
    ("Café ouvert le dimanche matin", "cafe ouvert le dimanche matin"),
]
NOT_THE_SAME = [
    ("Anna prefers tabs", "Anna prefers spaces"),
    ("the port is 8080", "the port is 9090"),
    ("the public API of the billing service is versioned", "the public API is not versioned"),
    ("Anna manages Bob and nobody else", "Bob manages Anna and nobody else"),
    ("deploy to staging on Monday", "the login test fails"),
    ("我喜欢喝咖啡", "我喜欢喝茶"),
    ("we deploy on Mondays", "we never deploy on Mondays"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_paraphrases_are_alike(one: str, other: str) -> None:
    assert similarity(one, other) >= MIN_SIMILARITY
    assert similarity(one, other) == similarity(other, one)


@pytest.mark.parametrize(("one", "other"), NOT_THE_SAME)
def test_statements_with_another_meaning_are_not_alike(one: str, other: str) -> None:
    if one == "Anna manages Bob and nobody else":
        assert similarity(one, other) < 1.0  # the words are the same: only their order tells
    else:
        assert similarity(one, other) < MIN_SIMILARITY


@pytest.mark.parametrize("text", ["", " ", "!?", "\0", "🙂", "the", "\ud800", "x" * 100_000])
def test_empty_or_unusual_texts_are_compared_without_error(text: str) -> None:
    known = NearDuplicateIndex([("odd", text), ("other", "the port is 8080")])
    found = known.nearest(text)
    assert similarity(text, text) in (0.0, 1.0)
    assert (found is not None) is (similarity(text, text) == 1.0)
    assert known.nearest("nothing like it at all") is None


def test_nearest_returns_the_most_similar_text_or_none() -> None:
    known = NearDuplicateIndex(
        [
            ("port", "the port of the gateway is 8080"),
            ("tests", "tests need PYTHONPATH=src"),
            ("anna", "Anna prefers tabs in Python"),
        ]
    )
    exact = known.nearest("The tests need PYTHONPATH=src.")
    assert exact is not None
    assert (exact.id, exact.exact, exact.score) == ("tests", True, 1.0)
    nearly = known.nearest("tests always need PYTHONPATH=src")
    assert nearly is not None
    assert (nearly.id, nearly.exact) == ("tests", False)
    assert known.nearest("the port of the gateway is 9090") is None
    assert known.nearest("Anna likes coffee") is None
    known.add("coffee", "Anna likes coffee")
    found = known.nearest("Anna likes coffee")
    assert found is not None
    assert found.id == "coffee"
    assert len(known) == 4


def test_of_equal_texts_the_first_added_comes_first() -> None:
    known = NearDuplicateIndex([("b", "the port is 8080"), ("a", "the port is 8080")])
    assert [near.id for near in known.find_similar("port is 8080")] == ["b", "a"]


def test_a_negated_statement_is_not_a_match() -> None:
    known = NearDuplicateIndex([("yes", "the API is public")])
    assert known.nearest("the API is not public") is None
    assert known.nearest("the API isn't public") is None


def test_a_repeated_unknown_word_counts_once() -> None:
    known = NearDuplicateIndex([("a", "blue green")])
    (near,) = known.find_similar("blue green red red", 0.3)
    assert near.score == known.similarity("blue green red red", "blue green")


WORDS = [*"abcdefghij", "not", "the", "7", "8", "tests", "testing"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXTS, max_size=20), TEXTS, st.sampled_from([0.3, 0.5, MIN_SIMILARITY, 0.9, 1.0]))
def test_near_returns_exactly_the_texts_above_the_threshold(
    texts: list[str], asked: str, least: float
) -> None:
    known = NearDuplicateIndex((str(n), text) for n, text in enumerate(texts))
    by_one = [(known.similarity(asked, text), str(n)) for n, text in enumerate(texts)]
    expected = {(round(score, 9), id_) for score, id_ in by_one if score >= least}
    assert {
        (round(near.score, 9), near.id) for near in known.find_similar(asked, least)
    } == expected


def test_nearest_finds_a_shortened_text_among_five_thousand() -> None:
    chance = random.Random(5)
    words = [f"{a}{b}{c}" for a in "bcdfgklm" for b in "aeiouy" for c in "bcdfgklmnprstvwxz"]
    texts = [" ".join(chance.choices(words, k=8)) for _ in range(5000)]
    known = NearDuplicateIndex((str(n), text) for n, text in enumerate(texts))
    for n in range(0, 5000, 97):
        said = texts[n].split()
        del said[3]
        found = known.nearest(" ".join(said))
        assert found is not None
        assert found.id == str(n)

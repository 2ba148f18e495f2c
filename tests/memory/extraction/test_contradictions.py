"""What cannot both be true is seen; what can, is let stand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortet.memory.extraction.contradictions import (
    MIN_SIMILARITY,
    Claim,
    Detector,
    NearDuplicateIndex,
    RuleDetector,
    similarity,
)

CANNOT_BOTH = [
    ("the port is 8080", "the port is 9090", ""),
    (
        "The API rate limit is 100 requests per minute",
        "the API rate limit is 60 requests per minute",
        "",
    ),
    ("the release is on 14 March", "the release is on 3 April", "release"),
    ("CI uses Python 3.11", "CI uses Python 3.12", "CI"),
    ("the API is public", "the API is not public", ""),
    ("the API is public", "The API isn't public.", ""),
    ("Anna eats meat", "Anna does not eat meat", "Anna"),
    ("Anna can eat gluten", "Anna cannot eat gluten", "Anna"),
    ("Anna uses Emacs", "Anna no longer uses Emacs", "Anna"),
    ("always deploy on Fridays", "never deploy on Fridays", "rules"),
    ("the feature flag is enabled", "the feature flag is disabled", ""),
    ("Anna likes coffee", "Anna hates coffee", "Anna"),
    ("lint runs before the tests", "lint runs after the tests", "lint"),
    ("debug mode on", "debug mode off", "debug mode"),
    ("the proxy allows websockets", "the proxy denies websockets", "proxy"),
    ("Anna prefers tabs", "Anna prefers spaces", "Anna"),
    ("prefers tabs", "prefers spaces", "indentation"),
    ("prefers long sentences", "prefers short sentences", "style"),
    ("Anna prefers aeropress at breakfast", "Anna prefers espresso at breakfast", "Anna"),
    ("Caroline lives in Oslo", "Caroline lives in Bergen", "Caroline"),
    ("Bob works at Initech", "Bob works at Acme", "Bob"),
    ("the staging database is called orders_stg", "the staging database is called shop_stg", ""),
    ("the maintainer is Bob", "the maintainer is Alice", "maintainer"),
    ("the standup is on Monday", "the standup is on Tuesday", "standup"),
    ("端口是8080", "端口是9090", "端口"),
]

CAN_BOTH = [
    ("the port is 8080", "the port is 8080.", ""),
    ("the port is 8080", "the host is 8080", ""),
    ("Anna likes coffee", "Anna likes tea", "Anna"),
    ("Anna likes coffee", "Bob hates coffee", ""),
    ("Anna is a vegetarian", "Anna is a developer", "Anna"),
    ("the API is slow", "the API is public", "API"),
    ("Anna prefers tea", "Anna prefers window seats", "Anna"),
    ("Anna prefers tabs", "Anna prefers tabs in Makefiles", "Anna"),
    ("step 3 needs Java", "step 4 needs Java", ""),
    ("Anna does not use tabs", "Anna does not use spaces", "Anna"),
    ("the port is not 8080", "the port is not 9090", ""),
    ("we use pytest", "we use hypothesis", "testing"),
    ("the service runs on port 80", "the service runs on Kubernetes", "service"),
    ("the flag is enabled", "the flag is not disabled", ""),
    ("our public API uses JWT", "our private API uses JWT", ""),
    ("all first steps need Java", "all last steps need Java", ""),
    ("Anna uses vim", "Anna uses emacs", "Anna"),
    ("Anna speaks German", "Anna speaks English", "Anna"),
    ("Anna speaks Norwegian at home", "Anna works at Acme", "Anna"),
    ("", "", ""),
    ("🙂", "🙃", ""),
    ("not", "no", ""),
    ("x" * 5000, "y" * 5000, ""),
]

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


@pytest.mark.parametrize(("one", "other", "about"), CANNOT_BOTH)
def test_contradicting_claims_are_detected_in_both_directions(
    one: str, other: str, about: str
) -> None:
    detector = RuleDetector()
    assert detector(Claim("new", one, about), [Claim("old", other, about)]) == ["old"]
    assert detector(Claim("new", other, about), [Claim("old", one, about)]) == ["old"]


@pytest.mark.parametrize(("one", "other", "about"), CAN_BOTH)
def test_compatible_claims_are_not_contradictions(one: str, other: str, about: str) -> None:
    detector = RuleDetector()
    assert detector(Claim("new", one, about), [Claim("old", other, about)]) == []
    assert detector(Claim("new", other, about), [Claim("old", one, about)]) == []


def test_claims_about_different_subjects_do_not_contradict() -> None:
    detector = RuleDetector()
    new = Claim("new", "the port is 8080", "gateway")
    assert detector(new, [Claim("old", "the port is 9090", "database")]) == []
    assert detector(new, [Claim("old", "the port is 9090", "Gateway")]) == ["old"]
    assert detector(new, [Claim("old", "the port is 9090")]) == []
    named = Claim("new", "the gateway port is 8080", "gateway")
    assert detector(named, [Claim("old", "the gateway port is 9090")]) == ["old"]


def test_claims_contradict_only_while_both_are_valid() -> None:
    detector = RuleDetector()
    march, april, may = 300, 400, 500
    old = Claim("old", "Anna lives in Oslo", "Anna", march, april)
    assert detector(Claim("new", "Anna lives in Bergen", "Anna", april), [old]) == []
    assert detector(Claim("new", "Anna lives in Bergen", "Anna", march, may), [old]) == ["old"]
    assert detector(Claim("new", "Anna lives in Bergen", "Anna"), [old]) == ["old"]
    assert detector(Claim("new", "Anna lives in Bergen", "Anna", 0, march), [old]) == []


def test_every_contradicted_claim_is_listed_in_order_except_itself() -> None:
    detector: Detector = RuleDetector()
    known = [Claim(str(n), f"the port is {n}", "port") for n in range(8080, 8084)]
    new = Claim("8081", "the port is 8081", "port")
    assert detector(new, known) == ["8080", "8082", "8083"]


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

"""What cannot both be true is seen; what can, is let stand."""

from __future__ import annotations

import pytest

from ortet.memory.extraction.contradictions import Claim, Detector, RuleDetector

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

"""The gate for what callers give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ortet._util.validation import (
    COUNT,
    LIST,
    NUMBER,
    PATH,
    POSITIVE_COUNT,
    Constraint,
    check_texts,
    optional,
    require,
)
from ortet.errors import Invalid


@pytest.mark.parametrize(
    ("sort", "good", "bad"),
    [
        (COUNT, [0, 5], [-1, 1.0, True, "5", None]),
        (POSITIVE_COUNT, [1], [0, True]),
        (NUMBER, [0, 1.5], [-0.1, float("inf"), float("nan"), True, "1"]),
        (PATH, ["a", Path("a")], ["", "a\0b", b"a", 5, None]),
        (LIST, [[], (), {"a"}, iter("ab")], ["ab", b"ab", 5, None]),
    ],
)
def test_must_be_accepts_good_values_and_refuses_bad_ones(
    sort: Constraint, good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        require(sort, value=value)
    for value in bad:
        with pytest.raises(Invalid, match=f"value is .*: give {sort.description}"):
            require(sort, value=value)


def test_may_be_accepts_none() -> None:
    optional(COUNT, one=None, two=2)
    with pytest.raises(Invalid, match="two is str: give a whole number from 0"):
        optional(COUNT, one=None, two="2")


def test_check_texts_refuses_a_single_text() -> None:
    assert check_texts("steps", ("a", "b")) == ["a", "b"]
    for wrong in ("ab", 5, ["a", 5]):
        with pytest.raises(Invalid, match="steps"):
            check_texts("steps", wrong)

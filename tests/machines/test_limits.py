"""What may be given as limits."""

from __future__ import annotations

from typing import Any

import pytest

from ortet.errors import Invalid
from ortet.machines.limits import DEFAULT_MAX_PIDS, MachineLimits, parse_limits


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, MachineLimits(0, 0.0, DEFAULT_MAX_PIDS)),
        ({"memory": "2G", "cpu": 1.5, "pids": 500}, MachineLimits(2 << 30, 1.5, 500)),
        ({"memory": "512 MiB"}, MachineLimits(512 << 20)),
        ({"memory": "0.5g", "cpu": None}, MachineLimits(512 << 20)),
        ({"memory": 64 << 20, "cpu": 2}, MachineLimits(64 << 20, 2)),
    ],
)
def test_limits_are_parsed_from_numbers_and_units(
    given: dict[str, Any], found: MachineLimits
) -> None:
    assert parse_limits(given) == found
    assert parse_limits(found.to_dict()) == found


@pytest.mark.parametrize(
    "given",
    [
        {"memory": "a lot"},
        {"memory": "1k"},
        {"memory": "9" * 400},
        {"memory": 1 << 80},
        {"cpu": 1e300},
        {"memory": -1},
        {"memory": True},
        {"memory": 1e9},
        {"cpu": 0},
        {"cpu": "1"},
        {"cpu": float("nan")},
        {"pids": 1},
        {"pids": 1.5},
        {"disk": "1G"},
        "2G",
    ],
)
def test_invalid_limits_are_refused_with_advice(given: Any) -> None:
    with pytest.raises(Invalid) as caught:
        parse_limits(given)
    assert caught.value.kind == "bad_limits"
    assert "give" in str(caught.value)

"""Filters of items and match patterns of namespaces in a LangGraph store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import ge, gt, le, lt
from typing import Any

from langgraph.store.base import ListNamespacesOp, MatchCondition

from ortet.errors import Invalid

_ORDER: dict[str, Callable[[Any, Any], bool]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}


Test = Callable[[Any], bool]


def compile_filter(expected: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
    """Compile a filter to a function that tests a value.

    Each field is compared for equality or by operators. Compiling once makes testing many values
    fast.
    """
    tests = [(key, _compile_value(one)) for key, one in expected.items()]
    if len(tests) == 1:
        ((name, test),) = tests
        return lambda value: test(value.get(name))
    return lambda value: all(test(value.get(key)) for key, test in tests)


def _compile_value(expected: Any) -> Test:
    if isinstance(expected, Mapping):
        if any(isinstance(key, str) and key.startswith("$") for key in expected):
            return _all_of([_compile_operator(key, one) for key, one in expected.items()])
        inner = compile_filter(expected)
        return lambda value: isinstance(value, dict) and inner(value)
    if isinstance(expected, list | tuple):
        parts = [_compile_value(one) for one in expected]
        return lambda value: (
            isinstance(value, list)
            and len(value) == len(parts)
            and all(test(one) for test, one in zip(parts, value, strict=True))
        )
    return lambda value: bool(value == expected)


def _all_of(tests: list[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]
    if len(tests) == 2:
        first, second = tests
        return lambda value: first(value) and second(value)
    return lambda value: all(test(value) for test in tests)


def _compile_operator(operator: str, other: Any) -> Test:
    if operator == "$eq":
        return lambda value: bool(value == other)
    if operator == "$ne":
        return lambda value: bool(value != other)
    if operator not in _ORDER:
        known = ", ".join(("$eq", "$ne", *_ORDER))
        raise Invalid("bad_filter", f"there is no operator {operator!r} in filters: use {known}")
    compare = _ORDER[operator]
    try:
        bound: float | None = float(other)
    except (TypeError, ValueError):
        bound = None

    def holds(value: Any) -> bool:
        if bound is not None:
            try:
                return compare(float(value), bound)
            except (TypeError, ValueError):
                pass
        # Not numbers: compare as text, which also orders ISO dates.
        return isinstance(value, str) and isinstance(other, str) and compare(value, other)

    return holds


def listed(
    namespaces: Iterable[tuple[str, ...]], wanted: ListNamespacesOp
) -> list[tuple[str, ...]]:
    """Return the matching namespaces, cut to the maximum depth, unique and sorted."""
    conditions = wanted.match_conditions or ()
    found = (one for one in namespaces if all(_matches(one, each) for each in conditions))
    ordered = sorted({one[: wanted.max_depth] for one in found})
    return ordered[wanted.offset : wanted.offset + wanted.limit]


def _matches(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    kind, path = condition.match_type, condition.path
    if kind not in ("prefix", "suffix"):
        raise Invalid("bad_filter", f"match_type {kind!r}: give 'prefix' or 'suffix'")
    if len(path) > len(namespace):
        return False
    part = namespace[: len(path)] if kind == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for label, wanted in zip(part, path, strict=True))

"""Which items and namespaces of a LangGraph store are meant: filters and patterns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import ge, gt, le, lt
from typing import Any

from langgraph.store.base import ListNamespacesOp, MatchCondition

from ortet.errors import Invalid

_ORDER: dict[str, Callable[[Any, Any], bool]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}


def fits(value: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether every field is as a filter says: equal, or by operators."""
    return all(_is_like(value.get(key), one) for key, one in (wanted or {}).items())


def _is_like(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        if any(isinstance(key, str) and key.startswith("$") for key in wanted):
            return all(_holds(value, key, one) for key, one in wanted.items())
        return isinstance(value, Mapping) and all(
            _is_like(value.get(key), one) for key, one in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(value, list | tuple)
            and len(value) == len(wanted)
            and all(map(_is_like, value, wanted))
        )
    return bool(value == wanted)


def _holds(value: Any, operator: str, other: Any) -> bool:
    if operator == "$eq":
        return bool(value == other)
    if operator == "$ne":
        return bool(value != other)
    if operator not in _ORDER:
        known = ", ".join(("$eq", "$ne", *_ORDER))
        raise Invalid("bad_filter", f"there is no operator {operator!r} in filters: use {known}")
    try:
        return _ORDER[operator](float(value), float(other))
    except (TypeError, ValueError):  # no numbers: dates are compared as the texts that they are
        both = isinstance(value, str) and isinstance(other, str)
        return both and _ORDER[operator](value, other)


def listed(
    namespaces: Iterable[tuple[str, ...]], wanted: ListNamespacesOp
) -> list[tuple[str, ...]]:
    """Those that match, cut to the depth that is asked for, each once, in order."""
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

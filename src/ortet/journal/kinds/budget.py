"""Event kinds of spending: limits, and amounts that were spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ortet.journal.events import Event
from ortet.journal.kinds.event_kind import BriefingItems, BriefingSectionSpec, EventData, EventKind
from ortet.journal.state.state import SessionState


class _SpendData(msgspec.Struct):
    amounts: dict[str, float] = {}
    model: str = ""


def _fold_spend(state: SessionState, event: Event, data: EventData) -> None:
    del event
    add_spent(state, data["amounts"])


def add_spent(state: SessionState, amounts: dict[str, Any]) -> None:
    """Add amounts to what the session has spent."""
    spent = dict(state.core.spent)
    for name, amount in amounts.items():
        spent[name] = spent.get(name, 0.0) + float(amount)
    state.change_core(spent=spent)


def _fold_budget(state: SessionState, event: Event, data: EventData) -> None:
    del event
    state.change_core(limits=data.get("limits", {}), soft=data.get("soft", {}))


def _counters(items: BriefingItems) -> Sequence[tuple[str, Any]]:
    """Return line and data of each counter that has a limit or was spent."""
    counters: list[tuple[str, Any]] = []
    for name in sorted({*items.limits, *items.left, *items.spent}, reverse=True):
        limit, left = items.limits.get(name), items.left.get(name)
        spent = items.spent.get(name, 0.0)
        rest = f"{left:g} left" if left is not None else "no limit"
        line = f"{name}: {rest}, {spent:g} spent" + (f" of {limit:g}" if limit is not None else "")
        counters.append((line, {"name": name, "limit": limit, "left": left, "spent": spent}))
    return counters


def _describe_counter(counter: tuple[str, Any]) -> tuple[str, Any]:
    return counter


KINDS = (
    EventKind(
        name="spend",
        schema=_SpendData,
        reducer=_fold_spend,
        measured=True,
        only_amounts=True,
        group="money",
    ),
    EventKind(
        name="budget",
        reducer=_fold_budget,
        replay="skipped",
        only_amounts=True,
        group="money",
        briefing=(
            BriefingSectionSpec(60, "budget", "Budget left", 70, _counters, _describe_counter),
        ),
    ),
)

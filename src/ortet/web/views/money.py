"""The budget of a session and its family as the page shows it: limits, what is left, and how it was
spent over time, by model."""

from __future__ import annotations

from collections import defaultdict

import msgspec
from starlette.responses import Response

from ortet.sessions.actions.bill import Spent, spends
from ortet.sessions.actions.budget import levels
from ortet.sessions.reader import View
from ortet.web.asking import about
from ortet.web.request import Visit
from ortet.web.views.budget import Plot, Points, steps

_FIRST = ("usd", "tokens", "seconds")
_PLOTS = 6
_MODELS = 7
"""Lines of a plot; the models that cost least are added up."""
OTHERS = "others"


class Counter(msgspec.Struct, frozen=True):
    """One thing that is counted. None: it has no such limit. `used` is in percent of the limit."""

    name: str
    spent: float
    limit: float | None
    soft: float | None
    left: float | None
    used: int
    over: bool


class ByModel(msgspec.Struct, frozen=True):
    model: str
    amounts: dict[str, float]
    spends: int


class Money(msgspec.Struct, frozen=True):
    counters: list[Counter]
    models: list[ByModel]
    plots: list[Plot]
    sessions: int  # of the family, that spent something


def money(view: View) -> Money:
    """Of the whole family: forks draw on one budget, and no restore refunds anything."""
    spent, limits, left = view.spent(), view.limits(), view.budget_left()
    soft = levels(view.hub.catalog, view.row)[0].account.soft
    family = {row.id: row for row in view.hub.sessions() if row.family == view.row.family}
    since = min(row.created for row in family.values())
    parts = [one for one in spends(view.hub.catalog, since) if one.session in family]
    names = _ordered({*spent, *limits, *soft})
    end = max([view.hub.clock.now_ns(), *(one.time for one in parts)])
    start = min([since, *(one.time for one in parts)])
    plots = [
        _plot(name, parts, start, end, limit=limits.get(name), soft=soft.get(name))
        for name in names[:_PLOTS]
    ]
    return Money(
        counters=[
            Counter(
                name=name,
                spent=spent.get(name, 0.0),
                limit=limits.get(name),
                soft=soft.get(name),
                left=left.get(name),
                used=_percent(spent.get(name, 0.0), limits.get(name)),
                over=left.get(name) == 0,
            )
            for name in names
        ],
        models=_by_model(parts),
        plots=[plot for plot in plots if plot.series],
        sessions=len({one.session for one in parts}),
    )


def _percent(part: float, whole: float | None) -> int:
    return min(100, round(100 * part / whole)) if whole else 0


def _ordered(names: set[str]) -> list[str]:
    return [name for name in _FIRST if name in names] + sorted(names - set(_FIRST))


def _by_model(parts: list[Spent]) -> list[ByModel]:
    found: dict[str, tuple[dict[str, float], int]] = {}
    for one in parts:
        amounts, count = found.get(one.model, ({}, 0))
        for name, value in one.amounts.items():
            amounts[name] = amounts.get(name, 0.0) + value
        found[one.model] = amounts, count + 1
    lines = [ByModel(model, amounts, count) for model, (amounts, count) in found.items()]
    return sorted(lines, key=lambda one: (-one.amounts.get("usd", 0.0), one.model))


def _plot(
    name: str, parts: list[Spent], start: int, end: int, *, limit: float | None, soft: float | None
) -> Plot:
    lines: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for one in parts:
        if one.amounts.get(name):
            lines[one.model].append((one.time, one.amounts[name]))
    ordered = sorted(lines, key=lambda model: -sum(value for _, value in lines[model]))
    chosen = [(model or "no model", lines[model]) for model in ordered[:_MODELS]]
    if rest := [point for model in ordered[_MODELS:] for point in lines[model]]:
        chosen.append((OTHERS, rest))
    if len(chosen) > 1:
        every = [point for points in lines.values() for point in points]
        chosen.insert(0, ("all", every))
    rules = [("limit", limit, True)] if limit is not None else []
    rules += [("soft limit", soft, False)] if soft is not None else []
    summed = [(model, _sums(points)) for model, points in chosen]
    return steps(name, summed, start=start, end=end, limits=rules, unit=name)


def _sums(points: list[tuple[int, float]]) -> Points:
    found, total = [], 0.0
    for time, value in sorted(points):
        total += value
        found.append((time, total))
    return found


def budget(visit: Visit) -> Response:
    """The page."""
    with visit.view() as view:
        found = money(view)
        given = about(view)
    return visit.show("budget.html", tab="budget", found=found, **given)

"""The budget page of a session and its forks: limits, rest, and spending by model over time."""

from __future__ import annotations

from collections import defaultdict

import msgspec
from starlette.responses import Response

from ortet.sessions.actions.bill import SpendRecord, spends
from ortet.sessions.actions.budget import levels
from ortet.sessions.reader import SessionReader
from ortet.web.asking import session_frame
from ortet.web.request import PageRequest
from ortet.web.views.budget import Plot, Points, step_plot

_FIRST_COUNTERS = ("usd", "tokens", "seconds")
_MAX_PLOTS = 6
_MAX_MODELS = 7
"""Maximum number of models in a plot. The cheapest ones are added up."""
OTHERS = "others"


class BudgetCounter(msgspec.Struct, frozen=True):
    """One counter of the budget.

    A limit of None does not exist. `used` is in percent of the limit.
    """

    name: str
    spent: float
    limit: float | None
    soft: float | None
    left: float | None
    used: int
    over: bool


class ModelSpending(msgspec.Struct, frozen=True):
    """The spending on one model. `spends` counts the records."""

    model: str
    amounts: dict[str, float]
    spends: int


class BudgetPage(msgspec.Struct, frozen=True):
    """The data of the budget page."""

    counters: list[BudgetCounter]
    models: list[ModelSpending]
    plots: list[Plot]
    sessions: int  # sessions of the family that spent something


def build_budget_page(view: SessionReader) -> BudgetPage:
    """Return the budget of the whole family.

    Forks share one budget, and a restore refunds nothing.
    """
    spent, limits, left = view.spent(), view.limits(), view.budget_left()
    soft = levels(view.hub.catalog, view.row)[0].account.soft
    family = {row.id: row for row in view.hub.sessions() if row.family == view.row.family}
    since = min(row.created for row in family.values())
    parts = [one for one in spends(view.hub.catalog, since) if one.session in family]
    names = _order_counters({*spent, *limits, *soft})
    end = max([view.hub.clock.now_ns(), *(one.time for one in parts)])
    start = min([since, *(one.time for one in parts)])
    plots = [
        _plot(name, parts, start, end, limit=limits.get(name), soft=soft.get(name))
        for name in names[:_MAX_PLOTS]
    ]
    return BudgetPage(
        counters=[
            BudgetCounter(
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


def _percent(part: float, total: float | None) -> int:
    return min(100, round(100 * part / total)) if total else 0


def _order_counters(names: set[str]) -> list[str]:
    return [name for name in _FIRST_COUNTERS if name in names] + sorted(
        names - set(_FIRST_COUNTERS)
    )


def _by_model(entries: list[SpendRecord]) -> list[ModelSpending]:
    found: dict[str, tuple[dict[str, float], int]] = {}
    for one in entries:
        amounts, count = found.get(one.model, ({}, 0))
        for name, value in one.amounts.items():
            amounts[name] = amounts.get(name, 0.0) + value
        found[one.model] = amounts, count + 1
    lines = [ModelSpending(model, amounts, count) for model, (amounts, count) in found.items()]
    return sorted(lines, key=lambda one: (-one.amounts.get("usd", 0.0), one.model))


def _plot(
    name: str,
    entries: list[SpendRecord],
    start: int,
    end: int,
    *,
    limit: float | None,
    soft: float | None,
) -> Plot:
    lines: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for one in entries:
        if one.amounts.get(name):
            lines[one.model].append((one.time, one.amounts[name]))
    ordered = sorted(lines, key=lambda model: -sum(value for _, value in lines[model]))
    chosen = [(model or "no model", lines[model]) for model in ordered[:_MAX_MODELS]]
    if rest := [point for model in ordered[_MAX_MODELS:] for point in lines[model]]:
        chosen.append((OTHERS, rest))
    if len(chosen) > 1:
        every = [point for points in lines.values() for point in points]
        chosen.insert(0, ("all", every))
    rules = [("limit", limit, True)] if limit is not None else []
    rules += [("soft limit", soft, False)] if soft is not None else []
    summed = [(model, _running_totals(points)) for model, points in chosen]
    return step_plot(name, summed, start=start, end=end, limits=rules, unit=name)


def _running_totals(points: list[tuple[int, float]]) -> Points:
    found, total = [], 0.0
    for time, value in sorted(points):
        total += value
        found.append((time, total))
    return found


def budget(page_request: PageRequest) -> Response:
    """Render the budget page."""
    with page_request.view() as view:
        found = build_budget_page(view)
        given = session_frame(view)
    return page_request.render("budget.html", tab="budget", found=found, **given)

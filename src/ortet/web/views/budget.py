"""Plots as SVG: positions of points and ticks. The style sheet sets colours and fonts.

The page also shows the data of every plot in a table.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import msgspec
from starlette.responses import Response

from ortet.hub.hub import hub_of
from ortet.sessions.actions.bill import SpendRecord, spends
from ortet.sessions.actions.budget import levels
from ortet.sessions.reader import SessionReader
from ortet.web.request import PageRequest, session_frame
from ortet.web.templates import amount

WIDTH, HEIGHT = 640, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 28
_FAR_LIMIT_FACTOR = 3
COLOURS = 8
"""Number of colour classes, series-0 to series-7."""


class Tick(msgspec.Struct, frozen=True):
    """A tick of an axis."""

    at: float
    text: str


class Series(msgspec.Struct, frozen=True):
    """One line of a plot. `points` is the step line in the format of an SVG polyline."""

    name: str
    colour: int
    points: str
    last: float


class LimitLine(msgspec.Struct, frozen=True):
    """A horizontal line for a limit."""

    name: str
    y: float
    value: float
    hard: bool


class Plot(msgspec.Struct, frozen=True):
    """A plot with its axes, in SVG coordinates."""

    title: str
    unit: str
    series: list[Series]
    rules: list[LimitLine]
    xs: list[Tick]
    ys: list[Tick]
    above: list[str] = []  # limits above the plotted range
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM


class Bar(msgspec.Struct, frozen=True):
    """One bar. `share` is in percent of the longest bar, `of_all` in percent of the sum."""

    name: str
    value: float
    share: float
    of_all: float
    colour: int
    note: str = ""


Points = Sequence[tuple[int, float]]
"""Times in ns, each with the running total."""


def step_plot(
    title: str,
    curves: Sequence[tuple[str, Points]],
    *,
    start: int,
    end: int,
    limits: Sequence[tuple[str, float, bool]] = (),
    unit: str = "",
) -> Plot:
    """Return a step plot of running totals over time.

    A limit far above all curves is listed in `above`, not drawn. Drawing it would flatten the
    curves.
    """
    most = max([y for _, points in curves for _, y in points] + [0.0])
    far = [(name, value) for name, value, _ in limits if value > _FAR_LIMIT_FACTOR * most > 0]
    limits = [one for one in limits if one[:2] not in far]
    most = max([most] + [value for _, value, _ in limits])
    top = _round_up(most)
    span = max(1, end - start)

    def x(time: int) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (time - start) / span, 1)

    def y(value: float) -> float:
        return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / top, 1)

    series = []
    for number, (name, points) in enumerate(curves):
        path, before = [f"{x(start)},{y(0)}"], 0.0
        for time, value in _downsample(points):
            path += [f"{x(time)},{y(before)}", f"{x(time)},{y(value)}"]
            before = value
        path.append(f"{x(end)},{y(before)}")
        series.append(Series(name, number % COLOURS, " ".join(path), before))
    rules = [LimitLine(name, y(value), value, hard) for name, value, hard in limits]
    ys = [Tick(y(top * part / 4), amount(top * part / 4, unit)) for part in range(5)]
    above = [f"{name} {amount(value, unit)}" for name, value in far]
    return Plot(title, unit, series, rules, _time_ticks(start, end, x), ys, above)


def bars(values: Sequence[tuple[str, float, str]]) -> list[Bar]:
    """Return bars for (name, value, note), longest first."""
    most = max([value for _, value, _ in values] + [0.0]) or 1.0
    whole = sum(value for _, value, _ in values) or 1.0
    ordered = sorted(values, key=lambda one: (-one[1], one[0]))
    return [
        Bar(
            name,
            value,
            round(100 * value / most, 2),
            round(100 * value / whole, 1),
            n % COLOURS,
            note,
        )
        for n, (name, value, note) in enumerate(ordered)
    ]


def _downsample(points: Points, max_points: int = 400) -> Points:
    """Return at most about `max_points` points, including the last one."""
    if len(points) <= max_points:
        return points
    step = len(points) / max_points
    sampled = [points[int(number * step)] for number in range(max_points)]
    return [*sampled, points[-1]]


def _round_up(value: float) -> float:
    """Return the next larger number that divides well, for the axis."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * 1.0001)


def _time_ticks(start: int, end: int, to_x: object) -> list[Tick]:
    from datetime import UTC, datetime

    assert callable(to_x)
    days = (end - start) / 86_400e9
    style = "%H:%M:%S" if days < 0.02 else "%H:%M" if days < 2 else "%m-%d"
    moments = [start + (end - start) * part // 4 for part in range(5)]
    return [
        Tick(to_x(one), datetime.fromtimestamp(one / 1e9, UTC).strftime(style)) for one in moments
    ]


# The budget page of a session and its forks: limits, rest, and spending by model over time.

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
    spent, limits, left = (
        view.accounting.spent(),
        view.accounting.limits(),
        view.accounting.budget_left(),
    )
    soft = levels(view.internals.store.catalog, view.internals.row)[0].account.soft
    family = {
        row.id: row for row in hub_of(view).sessions() if row.family == view.internals.row.family
    }
    since = min(row.created for row in family.values())
    parts = [one for one in spends(view.internals.store.catalog, since) if one.session in family]
    names = _order_counters({*spent, *limits, *soft})
    end = max([view.internals.store.clock.now_ns(), *(one.time for one in parts)])
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
    totals: dict[str, tuple[dict[str, float], int]] = {}
    for entry in entries:
        amounts, count = totals.get(entry.model, ({}, 0))
        for name, value in entry.amounts.items():
            amounts[name] = amounts.get(name, 0.0) + value
        totals[entry.model] = amounts, count + 1
    lines = [ModelSpending(model, amounts, count) for model, (amounts, count) in totals.items()]
    return sorted(lines, key=lambda entry: (-entry.amounts.get("usd", 0.0), entry.model))


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
    for entry in entries:
        if entry.amounts.get(name):
            lines[entry.model].append((entry.time, entry.amounts[name]))
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
    totals, total = [], 0.0
    for time, value in sorted(points):
        total += value
        totals.append((time, total))
    return totals


def budget(page_request: PageRequest) -> Response:
    """Render the budget page."""
    with page_request.view() as view:
        page = build_budget_page(view)
        frame = session_frame(view)
    return page_request.render("budget.html", tab="budget", page=page, **frame)

"""Plots as SVG: positions of points and ticks. The style sheet sets colours and fonts.

The page also shows the data of every plot in a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

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
    kept = [points[int(number * step)] for number in range(max_points)]
    return [*kept, points[-1]]


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

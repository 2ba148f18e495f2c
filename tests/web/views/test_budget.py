"""Plots of the budget page: sums over time, limits, bars."""

from __future__ import annotations

from pathlib import Path

import pytest

import ortet
from ortet.sessions.actions.bill import spends
from ortet.web.views.budget import OTHERS, bars, build_budget_page, step_plot

SECOND = 10**9


def points(text: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (one.split(",") for one in text.split())]


def test_step_plot_keeps_the_sum_until_it_grows() -> None:
    plot = step_plot(
        "usd",
        [("m", [(2 * SECOND, 1.0), (6 * SECOND, 3.0)])],
        start=0,
        end=10 * SECOND,
        limits=[("limit", 4.0, True)],
        unit="usd",
    )
    (series,) = plot.series
    found = points(series.points)
    assert [x for x, _ in found] == sorted(x for x, _ in found)
    assert found[0] == (plot.left, plot.bottom)
    assert found[-1][0] == plot.right
    assert series.last == 3.0
    assert len({y for _, y in found}) == 3  # nothing, one, three
    (rule,) = plot.rules
    assert plot.top <= rule.y < min(y for _, y in found)


@pytest.mark.parametrize("count", [0, 1, 400, 401, 5000])
def test_plot_with_any_number_of_points_is_one_bounded_line(count: int) -> None:
    given = [(n * SECOND, float(n + 1)) for n in range(count)]
    (series,) = step_plot("t", [("m", given)], start=0, end=6000 * SECOND).series
    assert len(points(series.points)) <= 2 * 401 + 2
    assert series.last == float(count)


def test_plot_of_no_spend_and_no_time_is_drawn() -> None:
    plot = step_plot("t", [], start=5, end=5)
    assert not plot.series
    assert len(plot.ys) == 5


def test_bars_are_shares_of_the_longest_and_of_all() -> None:
    found = bars([("a", 1.0, ""), ("b", 3.0, "x")])
    assert [(one.name, one.share, one.of_all) for one in found] == [
        ("b", 100.0, 75.0),
        ("a", 33.33, 25.0),
    ]
    assert bars([("a", 0.0, "")])[0].share == 0
    assert bars([]) == []


def test_spend_of_a_family_is_grouped_by_model(tmp_path: Path) -> None:
    with ortet.open(tmp_path / "store") as hub:
        with hub.session("other") as s:
            s.spend(usd=7, model="theirs")
        with hub.session("mine", budget={"usd": 10.0}) as s:
            for n in range(10):
                s.spend(usd=0.1 * (n + 1), model=f"m{n}")
            s.fork(1)[0].spend(usd=0.5, model="m0")
            found = build_budget_page(s)
            (usd,) = found.counters
            assert (usd.limit, usd.used, usd.over) == (10.0, 60, False)
            assert usd.spent == pytest.approx(6.0)
            (plot,) = found.plots
            names = [one.name for one in plot.series]
            assert names[:2] == ["all", "m9"]
            assert names[-1] == OTHERS
            assert plot.series[0].last == pytest.approx(6.0)
            assert {one.model for one in found.models} == {f"m{n}" for n in range(10)}
            assert found.sessions == 2
        every = list(spends(hub.catalog, None))
        assert sum(one.amounts["usd"] for one in every) == pytest.approx(13.0)
        assert all(one.time > 1_700_000_000 * SECOND for one in every)


def test_a_limit_far_above_the_spend_is_labelled_and_not_drawn() -> None:
    found = step_plot("usd", [("a", [(1, 0.2)])], start=0, end=2, limits=[("limit", 5.0, True)])
    assert (found.rules, found.above) == ([], ["limit 5"])
    assert float(found.ys[-1].text) < 1
    near = step_plot("usd", [("a", [(1, 2.0)])], start=0, end=2, limits=[("limit", 5.0, True)])
    assert ([one.name for one in near.rules], near.above) == (["limit"], [])

"""Lanes of the commit graph: a branch keeps its lane, the trunk stays left."""

from __future__ import annotations

from ortet.web.views.timeline_graph import LanePosition, lay_out


def test_linear_history_uses_one_lane() -> None:
    assert list(lay_out([("b", ["a"]), ("a", [])], ["b"])) == [
        LanePosition(0, [0], []),
        LanePosition(0, [], []),
    ]


def test_a_fork_keeps_its_lane_down_to_its_fork_point() -> None:
    history = [("fork", ["a"]), ("head", ["b"]), ("b", ["a"]), ("a", [])]
    places = dict(zip("fhba", lay_out(history, ["head"]), strict=True))
    assert [places[one].lane for one in "fhba"] == [1, 0, 0, 0]
    assert places["a"].joins == [1]


def test_a_lane_is_used_again_when_it_is_free() -> None:
    history = [("x", ["b"]), ("head", ["b"]), ("b", ["a"]), ("y", ["a"]), ("a", [])]
    assert [one.lane for one in lay_out(history, ["head"])] == [1, 0, 0, 1, 0]


def test_a_merge_leads_to_all_its_parents() -> None:
    history = [("m", ["a", "b"]), ("b", ["r"]), ("a", ["r"]), ("r", [])]
    places = list(lay_out(history, ["m"]))
    assert places[0] == LanePosition(0, [0, 1], [])
    assert [one.lane for one in places] == [0, 1, 0, 0]
    assert places[-1].joins == [1]


def test_without_a_trunk_the_newest_is_first() -> None:
    assert next(lay_out([("a", [])])).lane == 0

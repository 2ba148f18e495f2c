"""Every edge leads to the lane of its parent, lanes are used again, and drawings look right."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortet.history.graph_layout import CommitGraphRow, draw, lay_out, render_text

Commits = list[tuple[str, Sequence[str]]]


def picture(commits: Commits) -> list[str]:
    return [f"{line} {oid}".rstrip() for line, oid in draw(commits)]


FORK_AND_MERGE: Commits = [("m", ["b", "c"]), ("c", ["a"]), ("b", ["a"]), ("a", [])]
OCTOPUS: Commits = [("m", ["b", "c", "d"]), ("d", ["a"]), ("c", ["a"]), ("b", ["a"]), ("a", [])]
THREE_TIPS: Commits = [("x", ["a"]), ("y", ["a"]), ("z", ["a"]), ("a", [])]
FAR: Commits = [
    ("t1", ["p1"]),
    ("t2", ["p2"]),
    ("t3", ["p3"]),
    ("p1", ["r"]),
    ("p3", ["r"]),
    ("p2", ["r"]),
    ("r", []),
]


@pytest.mark.parametrize(
    ("commits", "lines"),
    [
        ([("c", ["b"]), ("b", ["a"]), ("a", [])], ["* c", "* b", "* a"]),
        (FORK_AND_MERGE, ["* m", "|\\", "| * c", "* | b", "|/", "* a"]),
        (
            OCTOPUS,
            ["* m", "|\\_\\", "| | * d", "| * | c", "| |/", "* | b", "|/", "* a"],
        ),
        (THREE_TIPS, ["* x", "| * y", "|/", "| * z", "|/", "* a"]),
        (
            FAR,
            ["* t1", "| * t2", "| | * t3", "* | | p1", "| | * p3", "|_|/", "| * p2", "|/", "* r"],
        ),
        ([("b", []), ("a", [])], ["* b", "* a"]),
        ([("b", ["a", "a"])], ["* b"]),
    ],
)
def test_forks_and_merges_are_drawn_in_lanes(commits: Commits, lines: list[str]) -> None:
    assert picture(commits) == lines


def test_render_text_returns_one_string_per_row() -> None:
    rows = list(lay_out(FORK_AND_MERGE))
    assert list(render_text(rows)) == ["*\n|\\", "| *", "* |\n|/", "*"]


@st.composite
def histories(draw: st.DrawFn) -> Commits:
    size = draw(st.integers(1, 40))
    commits: Commits = []
    for n in range(size):
        older = st.integers(n + 1, size + 2)  # beyond the end: cut off by a limit
        parents = draw(st.lists(older, max_size=3))
        commits.append((str(n), [str(parent) for parent in parents]))
    return commits


@settings(deadline=None)
@given(histories())
def test_following_edges_leads_from_child_to_parent(commits: Commits) -> None:
    rows = list(lay_out(commits))
    assert [row.oid for row in rows] == [oid for oid, _ in commits]
    lanes: dict[int, set[str]] = {}  # lane -> the parents its line leads to
    for row, (oid, parents) in zip(rows, commits, strict=True):
        here = lanes.get(row.lane, set())
        assert here <= {oid}, "a commit sits on another's line"
        assert all(oid not in lanes[lane] for lane in lanes if lane != row.lane)
        assert row.passing == sorted(lane for lane in lanes if lane != row.lane)
        lanes = follow(row, lanes, parents)
    assert set().union(*lanes.values()) == {p for _, ps in commits for p in ps} - {
        oid for oid, _ in commits
    }


def follow(
    row: CommitGraphRow, lanes: dict[int, set[str]], parents: Sequence[str]
) -> dict[int, set[str]]:
    """What each lane leads to after this row."""
    after: dict[int, set[str]] = {}
    own = iter(dict.fromkeys(parents))
    for start, end in row.edges:
        goal = {next(own)} if start == row.lane else lanes[start]
        after.setdefault(end, set()).update(goal)
    assert next(own, None) is None
    assert all(len(goals) == 1 for goals in after.values())
    return after


def test_many_short_forks_need_two_lanes() -> None:
    commits: Commits = [(f"fork{n}", ["base"]) for n in range(10_000)]
    rows = list(lay_out([*commits, ("base", [])]))
    assert max(row.lane for row in rows) == 1
    assert sum(len(row.edges) for row in rows) < 3 * len(rows)

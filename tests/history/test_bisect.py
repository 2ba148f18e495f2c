"""The search finds the first bad commit, in log2 n steps on a line, or says what it can be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortet._util.codec import decode, encode
from ortet.errors import Invalid
from ortet.history.bisect import Bisect, BisectResult, BisectState

Graph = dict[str, list[str]]


def chain(size: int) -> Graph:
    return {str(n): [str(n - 1)] if n else [] for n in range(size)}


def drive(search: Bisect, verdict: Callable[[str], str]) -> tuple[BisectResult, int]:
    steps = 0
    while (oid := search.next()) is not None:
        steps += 1
        {"good": search.good, "bad": search.bad, "skip": search.skip}[verdict(oid)](oid)
    answer = search.result()
    assert answer is not None
    return answer, steps


@settings(deadline=None)
@given(size=st.integers(2, 2000), data=st.data())
def test_bisect_finds_the_first_bad_commit_in_log2_steps(size: int, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(1, size - 1))
    graph = chain(size)
    search = Bisect(graph.__getitem__, BisectState(bad=str(size - 1), good=["0"]))
    answer, steps = drive(search, lambda oid: "bad" if int(oid) >= culprit else "good")
    assert answer == BisectResult(str(culprit), [str(culprit)])
    assert steps <= math.ceil(math.log2(size))


def test_bisect_continues_the_search_of_another_process() -> None:
    graph = chain(1000)
    state = BisectState(bad="999", good=["0"])
    for _ in range(20):
        search = Bisect(graph.__getitem__, decode(BisectState, encode(state)))
        oid = search.next()
        if oid is None:
            break
        (search.bad if int(oid) >= 321 else search.good)(oid)
        state = search.state
    assert Bisect(graph.__getitem__, state).result() == BisectResult("321", ["321"])
    assert state.tested <= 10


def test_bisect_searches_around_skipped_commits() -> None:
    search = Bisect(chain(100).__getitem__, BisectState(bad="99", good=["0"]))
    answer, _ = drive(
        search,
        lambda oid: "skip" if oid in ("50", "51", "49") else "bad" if int(oid) >= 20 else "good",
    )
    assert answer.first_bad == "20"


def test_a_skipped_first_bad_commit_leaves_suspects() -> None:
    search = Bisect(chain(100).__getitem__, BisectState(bad="99", good=["0"]))
    answer, _ = drive(
        search, lambda oid: "skip" if oid in ("40", "41") else "bad" if int(oid) >= 41 else "good"
    )
    assert answer.first_bad is None
    assert answer.suspects == ["42", "41", "40"]


MERGED: Graph = {
    "root": [],
    "m1": ["root"],
    "m2": ["m1"],
    "s1": ["root"],
    "s2": ["s1"],
    "merge": ["m2", "s2"],
    "tip": ["merge"],
}


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({"s2", "merge", "tip"}, "s2"),
        ({"s1", "s2", "merge", "tip"}, "s1"),
        ({"merge", "tip"}, "merge"),
        ({"m2", "merge", "tip"}, "m2"),
        ({"tip"}, "tip"),
    ],
)
def test_bisect_searches_merged_branches(broken: set[str], expected: str) -> None:
    search = Bisect(MERGED.__getitem__, BisectState(bad="tip", good=["root"]))
    answer, _ = drive(search, lambda oid: "bad" if oid in broken else "good")
    assert answer.first_bad == expected


def test_untestable_merged_branch_is_a_suspect() -> None:
    search = Bisect(MERGED.__getitem__, BisectState(bad="merge", good=["m2"]))
    answer, _ = drive(search, lambda _: "skip")
    assert answer == BisectResult(None, ["merge", "s2"])


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (BisectState(bad="3", good=[]), "no_good"),
        (BisectState(bad="3", good=["7"]), "contradiction"),
        (BisectState(bad="3", good=["3"]), "contradiction"),
    ],
)
def test_bisect_without_a_good_commit_or_with_contradicting_ends_is_refused(
    state: BisectState, kind: str
) -> None:
    with pytest.raises(Invalid) as caught:
        Bisect(chain(10).__getitem__, state)
    assert caught.value.kind == kind


def test_contradicting_verdicts_are_refused_and_change_nothing() -> None:
    search = Bisect(chain(10).__getitem__, BisectState(bad="9", good=["2"]))
    before = search.state
    with pytest.raises(Invalid):
        search.bad("1")
    with pytest.raises(Invalid):
        search.good("9")
    assert search.state == before
    assert search.next() is not None


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, set[str]]:
    """A DAG in which badness, once there, is inherited: by all that descends from one commit."""
    size = draw(st.integers(2, 30))
    graph: Graph = {"0": []}
    for n in range(1, size):
        low = max(0, n - 4)
        picks = draw(st.lists(st.integers(low, n - 1), min_size=1, max_size=3, unique=True))
        graph[str(n)] = [str(p) for p in picks]
    culprit = str(draw(st.integers(1, size - 1)))
    broken = {culprit}
    for n in range(size):
        if broken & set(graph[str(n)]):
            broken.add(str(n))
    return graph, broken


@settings(deadline=None)
@given(graphs())
def test_answer_is_bad_and_all_its_parents_are_good(case: tuple[Graph, set[str]]) -> None:
    graph, broken = case
    tip = max(broken, key=int)
    parents: Callable[[str], Sequence[str]] = graph.__getitem__
    answer, _ = drive(
        Bisect(parents, BisectState(bad=tip, good=["0"])),
        lambda oid: "bad" if oid in broken else "good",
    )
    assert answer.first_bad in broken
    assert not broken & set(graph[answer.first_bad])

"""A line of events: the same whether they lie in rows, in segments, or in both; across forks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from ortet.backends.base import Timeline
from ortet.errors import Corrupt
from ortet.history.records import JournalHead
from ortet.journal.event_log import TimelineSpan, last_shared_seq
from ortet.journal.events import Draft, Tip

if TYPE_CHECKING:
    from tests.fixtures.journals import Bench

FIRST, SECOND = "0" * 31 + "1", "0" * 31 + "2"
Say = Callable[[str], Draft]


def texts(bench: Bench, timeline: str = FIRST, base: JournalHead | None = None) -> list[str]:
    line = bench.line(timeline) if base is None else bench.line(timeline, base)
    return [event.data["content"] for event in line.events()]


def test_a_new_event_log_is_empty(bench: Bench) -> None:
    line = bench.line()
    assert list(line.events()) == []
    assert line.newest(3) == []
    assert line.tip() == Tip()


def test_events_are_read_in_order(bench: Bench, say: Say) -> None:
    line = bench.line()
    made = bench.append(line, *[say(f"m{number}") for number in range(10)])
    assert [event.hash for event in line.events()] == [event.hash for event in made]
    assert [event.seq for event in line.events(after=3, upto=6)] == [4, 5, 6]
    assert [event.seq for event in line.newest(3)] == [8, 9, 10]
    assert [event.seq for event in line.newest(99)] == list(range(1, 11))
    bench.chain.check(Tip(), line.rows())


def test_a_fork_shares_the_events_before_its_point(bench: Bench, say: Say) -> None:
    line = bench.line()
    bench.append(line, *[say(f"m{number}") for number in range(5)])
    bench.start(SECOND, FIRST, 3)
    fork = bench.line(SECOND)
    assert fork.tip().seq == 3
    bench.append(fork, say("other"))
    assert texts(bench, SECOND) == ["m0", "m1", "m2", "other"]
    assert texts(bench) == ["m0", "m1", "m2", "m3", "m4"]
    assert [event.seq for event in fork.newest(2)] == [3, 4]
    assert [event.timeline for event in fork.newest(2)] == [FIRST, SECOND]
    bench.chain.check(Tip(), fork.rows())


@pytest.mark.parametrize("trim", [0, 2, 3, 4, 99])
def test_trimmed_events_come_from_segments(bench: Bench, say: Say, trim: int) -> None:
    line = bench.line()
    for number in range(6):
        bench.append(line, say(f"m{number}"))
        if number % 2:
            bench.commit(line)
    base = line.base
    bench.append(line, say("new"))
    bench.catalog.trim_events(FIRST, min(trim, base.seq))
    assert texts(bench, base=base) == ["m0", "m1", "m2", "m3", "m4", "m5", "new"]
    again = bench.line(base=base)
    assert [event.seq for event in again.events(after=1, upto=4)] == [2, 3, 4]
    assert [event.seq for event in again.newest(5)] == [3, 4, 5, 6, 7]
    found = [again.event(FIRST, seq) for seq in range(1, 9)]
    assert [event and event.seq for event in found] == [1, 2, 3, 4, 5, 6, 7, None]
    assert again.event(SECOND, 2) is None
    bench.chain.check(Tip(), again.rows())


def test_a_fork_reads_trimmed_events_from_segments(bench: Bench, say: Say) -> None:
    line = bench.line()
    bench.append(line, *[say(f"m{number}") for number in range(6)])
    base = bench.commit(line)
    bench.start(SECOND, FIRST, 6)
    fork = bench.line(SECOND, base)
    assert fork.tip() == line.tip()
    bench.append(fork, say("other"))
    bench.catalog.trim_events(FIRST, 99)
    assert texts(bench, SECOND, base)[-3:] == ["m4", "m5", "other"]
    after = bench.commit(fork)
    assert (after.seq, after.hash) == (7, fork.tip().hash)
    bench.catalog.trim_events(SECOND, 99)
    assert texts(bench, SECOND, after) == ["m0", "m1", "m2", "m3", "m4", "m5", "other"]


def test_an_event_log_of_another_host_continues_from_its_commit(bench: Bench, say: Say) -> None:
    line = bench.line()
    bench.append(line, *[say(f"m{number}") for number in range(4)])
    base = bench.commit(line)
    other = "f" * 32
    bench.catalog.move([], verb="import", timelines=[Timeline(other, "", base.seq)])
    bench.catalog.drop_timeline(FIRST)
    there = bench.line(other, base)
    assert (there.tip().seq, there.tip().hash) == (base.seq, base.hash)
    bench.append(there, say("here"))
    assert texts(bench, other, base) == ["m0", "m1", "m2", "m3", "here"]
    assert [event.seq for event in there.newest(2)] == [4, 5]
    bench.chain.check(Tip(), there.rows())


def test_selected_events_are_read_across_timelines_or_none(bench: Bench, say: Say) -> None:
    line = bench.line()
    bench.append(line, *[say(f"m{number}") for number in range(1, 6)])
    base = bench.commit(line)
    other = "f" * 32
    bench.catalog.move([], verb="fork", timelines=[Timeline(other, FIRST, 3)])
    fork = bench.line(other)
    bench.append(fork, say("n4"), say("n5"))
    every = list(fork.events())
    assert fork.events_by_seq([1, 3, 4]) == [every[0], every[2], every[3]]
    assert fork.events_by_seq([]) == []
    assert fork.events_by_seq([3, 6]) is None
    bench.catalog.trim_events(FIRST, 2)
    assert bench.line(other, base).events_by_seq([2, 4]) is None
    assert bench.line(other, base).events_by_seq([3, 5]) == [every[2], every[4]]


def test_sealing_nothing_new_gives_the_same_segment(bench: Bench, say: Say) -> None:
    line = bench.line()
    bench.append(line, say("a"))
    first = bench.commit(line)
    assert bench.commit(line) == first


def test_events_that_are_nowhere_are_corrupt(bench: Bench, say: Say) -> None:
    line = bench.line()
    bench.append(line, *[say(f"m{number}") for number in range(4)])
    bench.catalog.trim_events(FIRST, 2)
    with pytest.raises(Corrupt) as caught:
        list(bench.line().events())
    assert caught.value.kind == "no_events"


@pytest.mark.parametrize(
    ("before", "after", "shared"),
    [
        ([("a", 0, 5)], [("a", 0, 9)], 5),
        ([("a", 0, 9)], [("a", 0, 5), ("b", 5, 7)], 5),
        ([("a", 0, 5)], [("a", 0, 5), ("b", 5, 7)], 5),
        ([("a", 0, 5), ("b", 5, 8)], [("a", 0, 10), ("c", 10, 12)], 5),
        ([("a", 0, 5), ("b", 5, 8)], [("a", 0, 3), ("c", 3, 12)], 3),
        ([("a", 0, 5), ("b", 5, 8)], [("a", 0, 5), ("b", 5, 6), ("c", 6, 6)], 6),
        ([("b", 20, 24)], [("c", 20, 22)], 20),
        ([("b", 20, 24)], [("b", 20, 23), ("c", 23, 23)], 23),
        ([], [("a", 0, 9)], 0),
    ],
)
def test_the_common_part_of_two_event_logs_is_found(
    before: list[tuple[str, int, int]], after: list[tuple[str, int, int]], shared: int
) -> None:
    assert (
        last_shared_seq(
            [TimelineSpan(*one) for one in before], [TimelineSpan(*one) for one in after]
        )
        == shared
    )

"""The cursor: what was recorded, found again by what it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ortet.errors import NotFound, RecordedFailure
from ortet.journal.events import Event
from ortet.journal.replay.cursor import ReplayCursor, failure_of
from ortet.journal.replay.run_diff import diff_runs, render


def events(*drafts: tuple[str, dict[str, Any]]) -> list[Event]:
    return [Event(seq, kind, seq, "me", data, b"") for seq, (kind, data) in enumerate(drafts, 1)]


def begun(id_: str, digest: str) -> tuple[str, dict[str, Any]]:
    return "begun", {"id": id_, "name": "f", "digest": digest, "args": [digest]}


def ended(id_: str, state: str, outcome: Any = None) -> tuple[str, dict[str, Any]]:
    return "ended", {"id": id_, "state": state, "outcome": outcome}


def test_replay_matches_calls_by_arguments_and_occurrence() -> None:
    cursor = ReplayCursor(
        events(begun("1", "a"), begun("2", "b"), ended("2", "done", 2), ended("1", "done", 1))
    )
    second = cursor.match_call("f", "b")
    assert second is not None
    assert second.ended is not None
    assert second.ended.data["outcome"] == 2
    assert cursor.match_call("f", "b") is None
    first = cursor.match_call("f", "a")
    assert first is not None
    assert first.state == "done"
    assert cursor.expected is None
    assert cursor.seq == 4


def test_each_attempt_of_a_call_replays_its_own_end() -> None:
    cursor = ReplayCursor(
        events(begun("1", "a"), ended("1", "unsettled"), begun("1", "a"), ended("1", "done", 7))
    )
    states = [found.state for _ in range(2) if (found := cursor.match_call("f", "a"))]
    assert states == ["unsettled", "done"]


def test_replay_of_a_long_run_does_not_hold_its_events() -> None:
    """Failed before: all events were read at the start."""
    read = 0

    def source() -> Iterator[Event]:
        nonlocal read
        for number in range(1, 3001, 3):
            read += 3
            id_ = str(number)
            yield Event(number, "message", 0, "", {"role": "user", "content": id_}, b"")
            yield Event(number + 1, *("begun", 0, "", begun(id_, id_)[1], b""))
            yield Event(number + 2, *("ended", 0, "", ended(id_, "done")[1], b""))

    cursor = ReplayCursor(source())
    assert read == 3
    for number in range(1, 3001, 3):
        assert cursor.match_event("message", {"role": "user", "content": str(number)}) is not None
        assert cursor.match_call("f", str(number)) is not None
        assert cursor.buffered_count <= 3
        assert read <= number + 5
    assert cursor.seq == 3000
    assert cursor.expected is None


def test_an_end_that_comes_later_is_waited_for() -> None:
    cursor = ReplayCursor(
        events(
            begun("1", "a"),
            ended("1", "unsettled"),
            ("message", {"role": "user", "content": "x"}),
            ended("1", "done", 7),
        )
    )
    found = cursor.match_call("f", "a")
    assert found is not None
    assert found.state == "done"
    assert cursor.seq == 2
    assert cursor.match_event("message", {"role": "user", "content": "x"}) is not None
    assert cursor.seq == 4


def test_replay_skips_events_that_no_call_asks_for() -> None:
    cursor = ReplayCursor(
        events(
            ("lifecycle", {"to": "active"}),
            ("of a later release", {}),
            ("message", {"role": "user", "content": "a"}),
            ("comment", {"text": "x"}),
        )
    )
    assert cursor.seq == 2
    assert cursor.expected is not None
    assert cursor.expected.kind == "message"
    assert [event.seq for event in cursor.passed_events] == [1, 2]
    found = cursor.match_event("message", {"role": "user", "content": "a"})
    assert found is not None
    assert cursor.seq == 4
    assert cursor.divergence_error("thought", {"text": "t"}).details["expected"] is None


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ({"error": "NotFound: x", "code": "no_page"}, NotFound),
        ({"error": "ValueError: x"}, ValueError),
        ({"error": "KeyboardInterrupt: x"}, RecordedFailure),
        ({"error": "open: x"}, RecordedFailure),
        ({"error": ""}, RecordedFailure),
        ({}, RecordedFailure),
    ],
)
def test_a_recorded_failure_is_raised_as_its_own_type_if_known(
    data: dict[str, Any], kind: type[Exception]
) -> None:
    assert type(failure_of("f", data)) is kind


def test_diff_runs_finds_and_renders_the_first_differing_event() -> None:
    one = [("message", {"role": "user", "content": str(n)}) for n in range(20)]
    other = [*one[:10], ("thought", {"text": "new\nline"}), *one[11:]]
    diff = diff_runs(events(("lifecycle", {"to": "active"}), *one), events(*other))
    assert diff.seq == 12
    lines = render(diff, width=60).splitlines()
    assert lines[0] == "they part at event 12"
    assert lines[1] == "... 7 the same"
    assert any("user 10" in line and "| 11 thought new line" in line for line in lines)
    assert diff_runs([], []).first is None
    longer = diff_runs([], events(*one[:1]))
    assert longer.first is not None
    assert (longer.first.left, longer.seq) == (None, 1)

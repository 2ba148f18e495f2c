"""Tests of timelines and events; part of CatalogTests."""

from __future__ import annotations

import pytest

from ortet.backends.base import Append, Catalog, EventRow, LeaseClaim, Move, RowChange, Timeline
from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.ids import Oid
from ortet.testing.clock import ManualClock
from ortet.testing.processes import run_in_threads

TIMELINE_ID, OTHER_TIMELINE_ID, THIRD_TIMELINE_ID = "0" * 31 + "1", "0" * 31 + "2", "0" * 31 + "3"
HEAD = Oid(b"h" * 32)


def make_event(seq: int, body: bytes = b"body") -> EventRow:
    return EventRow(seq, b"head %d" % seq, b"salt", body)


def make_events(first: int, last: int) -> list[EventRow]:
    return [make_event(seq) for seq in range(first, last + 1)]


class EventTests:
    @pytest.fixture
    def line(self, catalog: Catalog) -> str:
        catalog.move([], verb="open", timelines=[Timeline(TIMELINE_ID)])
        return TIMELINE_ID

    def test_a_missing_timeline_has_no_events_and_accepts_none(self, catalog: Catalog) -> None:
        assert catalog.timeline(TIMELINE_ID) is None
        assert catalog.events(TIMELINE_ID) == []
        for verb in (
            lambda: catalog.last_seq(TIMELINE_ID),
            lambda: catalog.append(TIMELINE_ID, [make_event(1)]),
            lambda: catalog.append(TIMELINE_ID, make_events(1, 2)),
        ):
            with pytest.raises(NotFound) as caught:
                verb()
            assert caught.value.kind == "no_timeline"

    @pytest.mark.parametrize("bad", ["", "x", "00", "g" * 32, "0" * 34])
    def test_a_timeline_id_must_have_32_digits(self, catalog: Catalog, bad: str) -> None:
        with pytest.raises(Invalid) as caught:
            catalog.timeline(bad)
        assert caught.value.kind == "bad_timeline"

    def test_events_come_back_in_order(self, catalog: Catalog, line: str) -> None:
        assert catalog.last_seq(line) == 0
        catalog.append(line, [make_event(1)])
        catalog.append(line, make_events(2, 5))
        assert catalog.last_seq(line) == 5
        assert catalog.events(line) == make_events(1, 5)
        assert catalog.events(line, after=2, limit=2) == make_events(3, 4)
        assert catalog.events(line, limit=2, newest=True) == make_events(4, 5)
        assert catalog.events(line, after=4, limit=9, newest=True) == make_events(5, 5)

    def test_last_heads_returns_the_last_header_of_each_timeline(
        self, catalog: Catalog, line: str
    ) -> None:
        catalog.append(line, make_events(1, 3))
        catalog.move([], verb="fork", timelines=[Timeline(OTHER_TIMELINE_ID, line, 2)])
        assert catalog.last_heads([OTHER_TIMELINE_ID, line, THIRD_TIMELINE_ID]) == [
            b"",
            b"head 3",
            b"",
        ]
        assert catalog.last_heads([]) == []
        known = {
            one.id: one for one in catalog.timelines([OTHER_TIMELINE_ID, line, THIRD_TIMELINE_ID])
        }
        assert known == {
            id_: one
            for id_ in (OTHER_TIMELINE_ID, line, THIRD_TIMELINE_ID)
            if (one := catalog.timeline(id_))
        }
        assert catalog.timelines([]) == []

    @pytest.mark.parametrize(
        "events",
        [[make_event(3)], [make_event(1)], make_events(3, 4), make_events(1, 3), [make_event(4)]],
    )
    def test_append_with_a_wrong_sequence_number_is_refused(
        self, catalog: Catalog, line: str, events: list[EventRow]
    ) -> None:
        catalog.append(line, make_events(1, 1))
        with pytest.raises(Conflict) as caught:
            catalog.append(line, events, rows=[RowChange("k", "k", b"")])
        assert caught.value.kind == "seq_taken"
        assert caught.value.details["found"] == 1
        assert catalog.events(line) == make_events(1, 1)
        assert catalog.row("k", "k") is None

    @pytest.mark.parametrize(
        "body",
        [b"", b"text " * 1000, bytes(range(256)), b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd" * 100],
        ids=["empty", "text", "bytes", "like zstd", "long, like zstd"],
    )
    def test_a_body_comes_back_as_it_was(self, catalog: Catalog, line: str, body: bytes) -> None:
        catalog.append(line, [make_event(1, body)])
        catalog.append(line, [make_event(2, body), make_event(3, body)])
        assert [found.body for found in catalog.events(line)] == [body] * 3
        assert catalog.events(line, limit=1, newest=True)[0].body == body

    def test_append_writes_events_and_rows_together(self, catalog: Catalog, line: str) -> None:
        catalog.append(line, [make_event(1)], rows=[RowChange("k", "k", b"1", expect=0)])
        with pytest.raises(Conflict) as caught:
            catalog.append(line, [make_event(2)], rows=[RowChange("k", "k", b"2", expect=0)])
        assert caught.value.kind == "row_moved"
        assert catalog.last_seq(line) == 1

    @pytest.mark.parametrize("count", [1, 3])
    def test_append_with_a_lost_lease_writes_nothing(
        self, catalog: Catalog, clock: ManualClock, line: str, count: int
    ) -> None:
        lease = catalog.acquire("session", "me", 100)
        catalog.append(line, make_events(1, count), lease=lease)
        clock.advance(101)
        with pytest.raises(Refused) as caught:
            catalog.append(line, make_events(count + 1, 2 * count), lease=lease)
        assert caught.value.kind == "lease_lost"
        other = catalog.acquire("session", "you", 100)
        with pytest.raises(Refused):
            catalog.append(line, make_events(count + 1, 2 * count), lease=lease)
        catalog.append(line, make_events(count + 1, 2 * count), lease=other)
        assert catalog.last_seq(line) == 2 * count

    def test_pick_returns_the_selected_events_that_exist(self, catalog: Catalog, line: str) -> None:
        catalog.append(line, make_events(1, 9))
        catalog.trim_events(line, 2)
        catalog.erase_events(line, [5])
        assert catalog.events_by_seq(line, [3, 4, 7]) == [*make_events(3, 4), *make_events(7, 7)]
        assert catalog.events_by_seq(line, [2, 9, 10]) == make_events(9, 9)
        assert [(one.seq, one.salt, one.body) for one in catalog.events_by_seq(line, [5])] == [
            (5, b"", b"")
        ]
        assert (
            catalog.events_by_seq(line, []) == catalog.events_by_seq(OTHER_TIMELINE_ID, [1]) == []
        )
        assert catalog.events_by_seq(line, range(1, 99)) == catalog.events(line)

    def test_pick_returns_a_few_of_many_events(self, catalog: Catalog, line: str) -> None:
        catalog.append(line, make_events(1, 500))
        catalog.trim_events(line, 2)
        assert catalog.events_by_seq(line, [2, 3, 499]) == [
            *make_events(3, 3),
            *make_events(499, 499),
        ]
        assert catalog.events_by_seq(line, [7, 500, 501]) == [
            *make_events(7, 7),
            *make_events(500, 500),
        ]

    def test_a_forked_timeline_continues_after_its_fork_point(
        self, catalog: Catalog, line: str
    ) -> None:
        catalog.append(line, make_events(1, 5))
        fork = Timeline(OTHER_TIMELINE_ID, parent=line, at=3)
        catalog.move([], verb="fork", timelines=[fork])
        assert catalog.timeline(OTHER_TIMELINE_ID) == fork
        assert catalog.children(line) == [fork]
        assert catalog.last_seq(OTHER_TIMELINE_ID) == 3
        assert catalog.events(OTHER_TIMELINE_ID) == []
        catalog.append(OTHER_TIMELINE_ID, make_events(4, 4))
        assert catalog.events(OTHER_TIMELINE_ID) == make_events(4, 4)
        assert catalog.last_seq(line) == 5

    @pytest.mark.parametrize("at", [-1, 6])
    def test_a_fork_point_must_exist(self, catalog: Catalog, line: str, at: int) -> None:
        catalog.append(line, make_events(1, 5))
        with pytest.raises(Invalid) as caught:
            catalog.move(
                [], verb="fork", timelines=[Timeline(OTHER_TIMELINE_ID, parent=line, at=at)]
            )
        assert caught.value.kind == "bad_fork"
        assert catalog.timeline(OTHER_TIMELINE_ID) is None

    def test_creating_a_timeline_twice_is_refused(self, catalog: Catalog, line: str) -> None:
        with pytest.raises(Conflict) as caught:
            catalog.move([], verb="open", timelines=[Timeline(line)])
        assert caught.value.kind == "timeline_exists"

    def test_move_applies_all_its_parts_or_none(self, catalog: Catalog, line: str) -> None:
        leases = catalog.move(
            [Move("branch:a", None, HEAD)],
            verb="fork",
            rows=[RowChange("session", "a", b"1", expect=0)],
            timelines=[Timeline(OTHER_TIMELINE_ID, parent=line, at=0)],
            appends=[Append(OTHER_TIMELINE_ID, make_events(1, 2))],
            claims=[LeaseClaim("session:a", "me", 100)],
        )
        assert leases == [catalog.lease("session:a")]
        assert catalog.last_seq(OTHER_TIMELINE_ID) == 2
        with pytest.raises(Conflict):
            catalog.move(
                [Move("branch:a", None, HEAD)],
                verb="fork",
                timelines=[Timeline(THIRD_TIMELINE_ID, parent=line, at=0)],
                appends=[Append(OTHER_TIMELINE_ID, make_events(3, 3))],
                claims=[LeaseClaim("session:b", "me", 100)],
            )
        assert catalog.timeline(THIRD_TIMELINE_ID) is None
        assert catalog.lease("session:b") is None
        assert catalog.last_seq(OTHER_TIMELINE_ID) == 2
        with pytest.raises(Refused) as caught:
            catalog.move([], verb="open", claims=[LeaseClaim("session:a", "you", 100)])
        assert caught.value.kind == "lease_held"

    def test_trim_keeps_the_last(self, catalog: Catalog, line: str) -> None:
        catalog.append(line, make_events(1, 5))
        assert catalog.trim_events(line, 3) == 3
        assert catalog.events(line) == make_events(4, 5)
        assert catalog.trim_events(line, 99) == 1
        catalog.reclaim()
        assert catalog.events(line) == make_events(5, 5)
        catalog.append(line, [make_event(6)])
        assert catalog.last_seq(line) == 6

    def test_an_erased_event_keeps_its_header(self, catalog: Catalog, line: str) -> None:
        catalog.append(line, make_events(1, 3))
        assert catalog.erase_events(line, [2, 3, 9]) == 2
        assert catalog.erase_events(line, [2]) == 0
        assert catalog.events(line) == [
            make_event(1),
            EventRow(2, b"head 2", b"", b""),
            EventRow(3, b"head 3", b"", b""),
        ]
        catalog.append(line, [make_event(4)])

    def test_a_timeline_with_forks_is_not_removed(self, catalog: Catalog, line: str) -> None:
        catalog.append(line, make_events(1, 3))
        catalog.move([], verb="fork", timelines=[Timeline(OTHER_TIMELINE_ID, parent=line, at=3)])
        with pytest.raises(Conflict) as caught:
            catalog.drop_timeline(line)
        assert caught.value.kind == "has_children"
        assert catalog.last_seq(line) == 3
        catalog.drop_timeline(OTHER_TIMELINE_ID)
        catalog.drop_timeline(line)
        catalog.drop_timeline(line)
        assert catalog.timeline(line) is None
        assert catalog.events(line) == []

    def test_concurrent_appends_take_each_sequence_number_once(
        self, catalog: Catalog, line: str
    ) -> None:
        def write(number: int) -> int:
            done = 0
            for seq in range(1, 41):
                try:
                    catalog.append(line, [make_event(seq, b"%d" % number)])
                    done += 1
                except Conflict as error:
                    assert error.kind == "seq_taken"
            return done

        assert sum(run_in_threads(write, [(number,) for number in range(4)])) == 40
        assert [found.seq for found in catalog.events(line)] == list(range(1, 41))

"""Timelines and events: part of CatalogTests."""

from __future__ import annotations

import pytest

from ortet.backends.base import Append, Catalog, Claim, EventRow, Move, RowChange, Timeline
from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.ids import Oid
from ortet.testing.clock import ManualClock
from ortet.testing.processes import in_threads

LINE, OTHER, THIRD = "0" * 31 + "1", "0" * 31 + "2", "0" * 31 + "3"
HEAD = Oid(b"h" * 32)


def event(seq: int, body: bytes = b"body") -> EventRow:
    return EventRow(seq, b"head %d" % seq, b"salt", body)


def row(first: int, last: int) -> list[EventRow]:
    return [event(seq) for seq in range(first, last + 1)]


class EventTests:
    @pytest.fixture
    def line(self, catalog: Catalog) -> str:
        catalog.move([], verb="open", timelines=[Timeline(LINE)])
        return LINE

    def test_a_missing_timeline_has_no_events_and_accepts_none(self, catalog: Catalog) -> None:
        assert catalog.timeline(LINE) is None
        assert catalog.events(LINE) == []
        for verb in (
            lambda: catalog.last_seq(LINE),
            lambda: catalog.append(LINE, [event(1)]),
            lambda: catalog.append(LINE, row(1, 2)),
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
        catalog.append(line, [event(1)])
        catalog.append(line, row(2, 5))
        assert catalog.last_seq(line) == 5
        assert catalog.events(line) == row(1, 5)
        assert catalog.events(line, after=2, limit=2) == row(3, 4)
        assert catalog.events(line, limit=2, newest=True) == row(4, 5)
        assert catalog.events(line, after=4, limit=9, newest=True) == row(5, 5)

    def test_last_heads_returns_the_last_header_of_each_timeline(
        self, catalog: Catalog, line: str
    ) -> None:
        catalog.append(line, row(1, 3))
        catalog.move([], verb="fork", timelines=[Timeline(OTHER, line, 2)])
        assert catalog.last_heads([OTHER, line, THIRD]) == [b"", b"head 3", b""]
        assert catalog.last_heads([]) == []
        known = {one.id: one for one in catalog.timelines([OTHER, line, THIRD])}
        assert known == {id_: one for id_ in (OTHER, line, THIRD) if (one := catalog.timeline(id_))}
        assert catalog.timelines([]) == []

    @pytest.mark.parametrize("events", [[event(3)], [event(1)], row(3, 4), row(1, 3), [event(4)]])
    def test_append_with_a_wrong_sequence_number_is_refused(
        self, catalog: Catalog, line: str, events: list[EventRow]
    ) -> None:
        catalog.append(line, row(1, 1))
        with pytest.raises(Conflict) as caught:
            catalog.append(line, events, rows=[RowChange("k", "k", b"")])
        assert caught.value.kind == "seq_taken"
        assert caught.value.details["found"] == 1
        assert catalog.events(line) == row(1, 1)
        assert catalog.row("k", "k") is None

    @pytest.mark.parametrize(
        "body",
        [b"", b"text " * 1000, bytes(range(256)), b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd" * 100],
        ids=["empty", "text", "bytes", "like zstd", "long, like zstd"],
    )
    def test_a_body_comes_back_as_it_was(self, catalog: Catalog, line: str, body: bytes) -> None:
        catalog.append(line, [event(1, body)])
        catalog.append(line, [event(2, body), event(3, body)])
        assert [found.body for found in catalog.events(line)] == [body] * 3
        assert catalog.events(line, limit=1, newest=True)[0].body == body

    def test_append_writes_events_and_rows_together(self, catalog: Catalog, line: str) -> None:
        catalog.append(line, [event(1)], rows=[RowChange("k", "k", b"1", expect=0)])
        with pytest.raises(Conflict) as caught:
            catalog.append(line, [event(2)], rows=[RowChange("k", "k", b"2", expect=0)])
        assert caught.value.kind == "row_moved"
        assert catalog.last_seq(line) == 1

    @pytest.mark.parametrize("count", [1, 3])
    def test_append_with_a_lost_lease_writes_nothing(
        self, catalog: Catalog, clock: ManualClock, line: str, count: int
    ) -> None:
        lease = catalog.acquire("session", "me", 100)
        catalog.append(line, row(1, count), lease=lease)
        clock.advance(101)
        with pytest.raises(Refused) as caught:
            catalog.append(line, row(count + 1, 2 * count), lease=lease)
        assert caught.value.kind == "lease_lost"
        other = catalog.acquire("session", "you", 100)
        with pytest.raises(Refused):
            catalog.append(line, row(count + 1, 2 * count), lease=lease)
        catalog.append(line, row(count + 1, 2 * count), lease=other)
        assert catalog.last_seq(line) == 2 * count

    def test_pick_returns_the_selected_events_that_exist(self, catalog: Catalog, line: str) -> None:
        catalog.append(line, row(1, 9))
        catalog.trim_events(line, 2)
        catalog.erase_events(line, [5])
        assert catalog.pick(line, [3, 4, 7]) == [*row(3, 4), *row(7, 7)]
        assert catalog.pick(line, [2, 9, 10]) == row(9, 9)
        assert [(one.seq, one.salt, one.body) for one in catalog.pick(line, [5])] == [(5, b"", b"")]
        assert catalog.pick(line, []) == catalog.pick(OTHER, [1]) == []
        assert catalog.pick(line, range(1, 99)) == catalog.events(line)

    def test_pick_returns_a_few_of_many_events(self, catalog: Catalog, line: str) -> None:
        catalog.append(line, row(1, 500))
        catalog.trim_events(line, 2)
        assert catalog.pick(line, [2, 3, 499]) == [*row(3, 3), *row(499, 499)]
        assert catalog.pick(line, [7, 500, 501]) == [*row(7, 7), *row(500, 500)]

    def test_a_forked_timeline_continues_after_its_fork_point(
        self, catalog: Catalog, line: str
    ) -> None:
        catalog.append(line, row(1, 5))
        fork = Timeline(OTHER, parent=line, at=3)
        catalog.move([], verb="fork", timelines=[fork])
        assert catalog.timeline(OTHER) == fork
        assert catalog.children(line) == [fork]
        assert catalog.last_seq(OTHER) == 3
        assert catalog.events(OTHER) == []
        catalog.append(OTHER, row(4, 4))
        assert catalog.events(OTHER) == row(4, 4)
        assert catalog.last_seq(line) == 5

    @pytest.mark.parametrize("at", [-1, 6])
    def test_a_fork_point_must_exist(self, catalog: Catalog, line: str, at: int) -> None:
        catalog.append(line, row(1, 5))
        with pytest.raises(Invalid) as caught:
            catalog.move([], verb="fork", timelines=[Timeline(OTHER, parent=line, at=at)])
        assert caught.value.kind == "bad_fork"
        assert catalog.timeline(OTHER) is None

    def test_creating_a_timeline_twice_is_refused(self, catalog: Catalog, line: str) -> None:
        with pytest.raises(Conflict) as caught:
            catalog.move([], verb="open", timelines=[Timeline(line)])
        assert caught.value.kind == "timeline_exists"

    def test_move_applies_all_its_parts_or_none(self, catalog: Catalog, line: str) -> None:
        leases = catalog.move(
            [Move("branch:a", None, HEAD)],
            verb="fork",
            rows=[RowChange("session", "a", b"1", expect=0)],
            timelines=[Timeline(OTHER, parent=line, at=0)],
            appends=[Append(OTHER, row(1, 2))],
            claims=[Claim("session:a", "me", 100)],
        )
        assert leases == [catalog.lease("session:a")]
        assert catalog.last_seq(OTHER) == 2
        with pytest.raises(Conflict):
            catalog.move(
                [Move("branch:a", None, HEAD)],
                verb="fork",
                timelines=[Timeline(THIRD, parent=line, at=0)],
                appends=[Append(OTHER, row(3, 3))],
                claims=[Claim("session:b", "me", 100)],
            )
        assert catalog.timeline(THIRD) is None
        assert catalog.lease("session:b") is None
        assert catalog.last_seq(OTHER) == 2
        with pytest.raises(Refused) as caught:
            catalog.move([], verb="open", claims=[Claim("session:a", "you", 100)])
        assert caught.value.kind == "lease_held"

    def test_trim_keeps_the_last(self, catalog: Catalog, line: str) -> None:
        catalog.append(line, row(1, 5))
        assert catalog.trim_events(line, 3) == 3
        assert catalog.events(line) == row(4, 5)
        assert catalog.trim_events(line, 99) == 1
        catalog.reclaim()
        assert catalog.events(line) == row(5, 5)
        catalog.append(line, [event(6)])
        assert catalog.last_seq(line) == 6

    def test_an_erased_event_keeps_its_header(self, catalog: Catalog, line: str) -> None:
        catalog.append(line, row(1, 3))
        assert catalog.erase_events(line, [2, 3, 9]) == 2
        assert catalog.erase_events(line, [2]) == 0
        assert catalog.events(line) == [
            event(1),
            EventRow(2, b"head 2", b"", b""),
            EventRow(3, b"head 3", b"", b""),
        ]
        catalog.append(line, [event(4)])

    def test_a_timeline_with_forks_is_not_removed(self, catalog: Catalog, line: str) -> None:
        catalog.append(line, row(1, 3))
        catalog.move([], verb="fork", timelines=[Timeline(OTHER, parent=line, at=3)])
        with pytest.raises(Conflict) as caught:
            catalog.drop_timeline(line)
        assert caught.value.kind == "has_children"
        assert catalog.last_seq(line) == 3
        catalog.drop_timeline(OTHER)
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
                    catalog.append(line, [event(seq, b"%d" % number)])
                    done += 1
                except Conflict as error:
                    assert error.kind == "seq_taken"
            return done

        assert sum(in_threads(write, [(number,) for number in range(4)])) == 40
        assert [found.seq for found in catalog.events(line)] == list(range(1, 41))

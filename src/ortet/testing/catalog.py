"""The contract of Catalog as tests.

    class TestMine(CatalogTests):
        @pytest.fixture
        def opener(self) -> CatalogOpener: return partial(MyCatalog, url)

`opener` takes a clock and must be picklable. Each call, in any process, opens the same catalog. The
catalog is empty when a test starts.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ortet.backends.base import (
    Append,
    Catalog,
    CatalogRow,
    EventRow,
    Head,
    Lease,
    LeaseClaim,
    Move,
    Op,
    RowChange,
    Timeline,
)
from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.ids import Oid
from ortet.testing.clock import ManualClock
from ortet.testing.processes import (
    CatalogOpener,
    increment_head,
    make_oid,
    run_in_processes,
    run_in_threads,
    try_lease,
)

# Tests of timelines and events; part of CatalogTests.

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


# Tests of heads and the operation log; part of CatalogTests.

A, B, C = make_oid(1), make_oid(2), make_oid(3)


def create_heads(catalog: Catalog, *names: str, at: Oid = A) -> None:
    catalog.move([Move(name, None, at) for name in names], verb="create")


class HeadTests:
    def test_a_missing_head_is_none(self, catalog: Catalog) -> None:
        assert catalog.head("branch:main") is None
        assert catalog.heads() == []

    def test_creating_a_head_sets_version_one(self, catalog: Catalog, clock: ManualClock) -> None:
        create_heads(catalog, "branch:main")
        assert catalog.head("branch:main") == Head("branch:main", A, 1, clock.now_ns())
        assert catalog.heads() == [Head("branch:main", A, 1, clock.now_ns())]

    def test_moving_a_head_raises_its_version(self, catalog: Catalog, clock: ManualClock) -> None:
        create_heads(catalog, "h")
        clock.advance(5)
        catalog.move([Move("h", A, B)], verb="commit")
        assert catalog.head("h") == Head("h", B, 2, clock.now_ns())

    def test_moving_a_head_to_its_current_commit_is_recorded(self, catalog: Catalog) -> None:
        create_heads(catalog, "h")
        catalog.move([Move("h", A, A)], verb="commit")
        head = catalog.head("h")
        assert head is not None
        assert head.version == 2
        assert len(catalog.ops("h")) == 2

    def test_deleting_a_head_removes_it_from_the_list(self, catalog: Catalog) -> None:
        create_heads(catalog, "h", "other")
        catalog.move([Move("h", A, None)], verb="delete")
        assert catalog.head("h") is None
        assert [head.name for head in catalog.heads()] == ["other"]

    def test_versions_go_on_after_a_delete(self, catalog: Catalog) -> None:
        create_heads(catalog, "h")
        catalog.move([Move("h", A, B), Move("h", B, C), Move("h", C, None)], verb="delete")
        create_heads(catalog, "h")
        head = catalog.head("h")
        assert head is not None
        assert head.version > 3

    def test_another_handle_sees_a_move_at_once(
        self, catalog: Catalog, opener: CatalogOpener, clock: ManualClock
    ) -> None:
        other = opener(clock)
        assert other.head("h") is None
        create_heads(catalog, "h")
        assert other.head("h") == catalog.head("h")
        other.move([Move("h", A, B)], verb="commit")
        assert catalog.head("h") == other.head("h")
        other.close()

    @pytest.mark.parametrize(
        ("move", "expect", "found"),
        [
            (Move("h", None, B), None, A),
            (Move("h", B, C), B, A),
            (Move("h", B, None), B, A),
            (Move("absent", A, B), A, None),
            (Move("absent", A, None), A, None),
        ],
    )
    def test_move_with_a_wrong_expectation_is_refused_and_changes_nothing(
        self, catalog: Catalog, move: Move, expect: Oid | None, found: Oid | None
    ) -> None:
        create_heads(catalog, "h")
        before = catalog.head("h"), catalog.ops()
        with pytest.raises(Conflict) as caught:
            catalog.move([move], verb="commit", rows=[RowChange("kind", "key", b"value")])
        assert caught.value.kind == "head_moved"
        assert caught.value.details == {
            "name": move.name,
            "expect": expect and expect.hex(),
            "found": found and found.hex(),
        }
        assert (catalog.head("h"), catalog.ops()) == before
        assert catalog.row("kind", "key") is None

    def test_a_batch_is_all_or_nothing(self, catalog: Catalog) -> None:
        create_heads(catalog, "one", "two")
        before = catalog.heads(), catalog.ops()
        with pytest.raises(Conflict) as caught:
            catalog.move(
                [
                    Move("one", A, B),
                    Move("three", None, B),
                    Move("two", C, B),
                    Move("one", B, None),
                ],
                verb="commit",
            )
        assert caught.value.details["name"] == "two"
        assert (catalog.heads(), catalog.ops()) == before

    def test_a_batch_is_applied_in_order(self, catalog: Catalog) -> None:
        catalog.move([Move("h", None, A), Move("h", A, B), Move("h", B, C)], verb="walk")
        head = catalog.head("h")
        assert head is not None
        assert (head.oid, head.version) == (C, 3)
        assert [(op.old, op.new) for op in catalog.ops("h")] == [(None, A), (A, B), (B, C)]

    def test_a_batch_of_1500_heads_is_created_and_listed(self, catalog: Catalog) -> None:
        names = [f"branch:{n:04}" for n in range(1500)]
        create_heads(catalog, *names)
        assert [head.name for head in catalog.heads(limit=2000)] == names
        assert len(catalog.heads()) == 1000

    def test_move_writes_heads_and_rows_together(self, catalog: Catalog) -> None:
        first = catalog.put_row("kind", "old", b"1")
        catalog.put_row("kind", "gone", b"1")
        catalog.move(
            [Move("h", None, A)],
            verb="create",
            rows=[
                RowChange("kind", "old", b"2"),
                RowChange("kind", "new", b"3"),
                RowChange("kind", "gone", None),
            ],
        )
        values = {row.key: row.value for row in catalog.rows("kind")}
        assert values == {"old": b"2", "new": b"3"}
        row = catalog.row("kind", "old")
        assert row is not None
        assert row.version == first.version + 1

    def test_rows_can_be_written_without_moves(self, catalog: Catalog) -> None:
        catalog.move(
            [],
            verb="note",
            rows=[RowChange("kind", "key", b"value"), RowChange("kind", "absent", None)],
        )
        assert [row.key for row in catalog.rows("kind")] == ["key"]
        assert catalog.ops() == []

    def test_a_bad_row_undoes_the_moves(self, catalog: Catalog) -> None:
        with pytest.raises(Invalid):
            catalog.move([Move("h", None, A)], verb="create", rows=[RowChange("kind", "", b"")])
        assert catalog.head("h") is None

    def test_a_move_without_old_and_new_commit_is_refused(self, catalog: Catalog) -> None:
        with pytest.raises(Invalid) as caught:
            catalog.move([Move("h", None, None)], verb="nothing")
        assert caught.value.kind == "empty_move"

    @pytest.mark.parametrize("name", ["", "a\0b", "\udc80", "x" * 5000])
    def test_an_invalid_head_name_is_refused(self, catalog: Catalog, name: str) -> None:
        with pytest.raises(Invalid) as caught:
            create_heads(catalog, name)
        assert caught.value.kind == "bad_name"

    def test_listing_by_prefix_in_order(self, catalog: Catalog) -> None:
        names = ["A", "a", "a%", "a/1", "a/10", "a/2", "a_b", "aab", "b", "z", "é", "日本", "🌱"]
        create_heads(catalog, *reversed(names))

        def listed(prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
            return [head.name for head in catalog.heads(prefix, after, limit)]

        assert names == sorted(names)
        assert listed() == names
        assert listed("a") == ["a", "a%", "a/1", "a/10", "a/2", "a_b", "aab"]
        assert listed("a/") == ["a/1", "a/10", "a/2"]
        assert listed("a%") == ["a%"]
        assert listed("a_") == ["a_b"]
        assert listed("日") == ["日本"]
        assert listed("nothing") == []
        assert listed("a/", after="a/1") == ["a/10", "a/2"]
        assert listed("a/", after="zzz") == []
        assert listed("a/", after="A") == ["a/1", "a/10", "a/2"]
        assert listed(limit=3) == names[:3]

    def test_pages_hold_every_head_once(self, catalog: Catalog) -> None:
        names = [f"branch:{n:02}" for n in range(25)]
        create_heads(catalog, "before", "tag:after", *names)
        seen: list[str] = []
        while page := catalog.heads("branch:", seen[-1] if seen else "", 10):
            assert len(page) <= 10
            seen += [head.name for head in page]
        assert seen == names

    def test_each_move_is_recorded_in_the_operation_log(
        self, catalog: Catalog, clock: ManualClock
    ) -> None:
        assert catalog.last_op() == 0
        create_heads(catalog, "h")
        clock.advance(7)
        catalog.move([Move("h", A, B)], verb="commit", actor="ann", detail="why")
        catalog.move([Move("h", B, None)], verb="delete")
        first, second, third = catalog.ops()
        assert second == Op(second.seq, clock.now_ns(), "commit", "h", A, B, "ann", "why")
        assert (first.old, first.new, first.time) == (None, A, clock.now_ns() - 7)
        assert (third.old, third.new) == (B, None)
        assert 0 < first.seq < second.seq < third.seq == catalog.last_op()

    def test_ops_are_listed_by_head_and_by_page(self, catalog: Catalog) -> None:
        create_heads(catalog, "one", "two")
        catalog.move([Move("one", A, B), Move("two", A, B)], verb="commit")
        catalog.move([Move("one", B, C)], verb="commit")
        assert [op.new for op in catalog.ops("one")] == [A, B, C]
        assert [op.new for op in catalog.ops("two")] == [A, B]
        assert catalog.ops("absent") == []
        every = catalog.ops()
        assert [op.name for op in every] == ["one", "two", "one", "two", "one"]
        assert catalog.ops(after=every[1].seq, limit=2) == every[2:4]
        assert catalog.ops("one", after=every[0].seq, limit=1) == [every[2]]
        assert catalog.ops(after=every[-1].seq) == []

    def test_trim_keeps_the_newest_of_every_head(
        self, catalog: Catalog, clock: ManualClock
    ) -> None:
        create_heads(catalog, "still", "moving", "gone")
        catalog.move([Move("moving", A, B), Move("gone", A, None)], verb="commit")
        clock.advance(10)
        catalog.move([Move("moving", B, C)], verb="commit")
        last = catalog.last_op()
        assert catalog.trim_ops(clock.now_ns() - 10) == 0
        assert catalog.trim_ops(clock.now_ns()) == 4
        assert [(op.name, op.new) for op in catalog.ops()] == [("still", A), ("moving", C)]
        assert catalog.last_op() == last
        assert catalog.check() == []

    def test_an_operation_number_is_never_reused(
        self, catalog: Catalog, clock: ManualClock
    ) -> None:
        create_heads(catalog, "h")
        catalog.move([Move("h", A, None)], verb="delete")
        last = catalog.last_op()
        clock.advance(10)
        catalog.trim_ops(clock.now_ns())
        create_heads(catalog, "h")
        assert catalog.last_op() > last

    def test_no_move_is_lost_among_threads(self, catalog: Catalog, opener: CatalogOpener) -> None:
        run_in_threads(increment_head, [(opener, "h", 20)] * 4)
        self._check_chain(catalog, "h", 80)

    def test_no_move_is_lost_among_threads_of_one_handle(self, catalog: Catalog) -> None:
        class UnclosableCatalog:
            """The shared catalog, protected against `close` by a thread."""

            def __getattr__(self, name: str) -> object:
                return (lambda: None) if name == "close" else getattr(catalog, name)

        run_in_threads(increment_head, [(lambda _clock: UnclosableCatalog(), "h", 20)] * 4)
        self._check_chain(catalog, "h", 80)

    def test_no_move_is_lost_among_processes(self, catalog: Catalog, opener: CatalogOpener) -> None:
        run_in_processes(increment_head, [(opener, "h", 50)] * 4)
        self._check_chain(catalog, "h", 200)

    def _check_chain(self, catalog: Catalog, name: str, moves: int) -> None:
        head = catalog.head(name)
        assert head is not None
        assert (head.oid, head.version) == (make_oid(moves), moves)
        ops = catalog.ops(name)
        assert [op.new for op in ops] == [make_oid(n) for n in range(1, moves + 1)]
        assert [op.old for op in ops[1:]] == [op.new for op in ops[:-1]]
        assert catalog.check() == []


# Tests of leases and fences; part of CatalogTests.


class LeaseTests:
    def test_acquire_returns_a_lease_with_fence_and_expiry(
        self, catalog: Catalog, clock: ManualClock
    ) -> None:
        assert catalog.lease("w") is None
        lease = catalog.acquire("w", "ann", 100)
        assert lease == Lease("w", "ann", lease.fence, clock.now_ns() + 100)
        assert lease.fence > 0
        assert catalog.lease("w") == lease

    def test_acquire_by_another_owner_is_refused_while_the_lease_is_live(
        self, catalog: Catalog, clock: ManualClock
    ) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(99)
        with pytest.raises(Refused) as caught:
            catalog.acquire("w", "bob", 100)
        assert caught.value.kind == "lease_held"
        assert caught.value.details == {"owner": "ann", "expires": lease.expires}
        assert catalog.lease("w") == lease

    def test_leases_of_different_names_are_independent(self, catalog: Catalog) -> None:
        catalog.acquire("w", "ann", 100)
        assert catalog.acquire("v", "bob", 100).owner == "bob"

    def test_the_same_owner_renews_and_keeps_its_fence(
        self, catalog: Catalog, clock: ManualClock
    ) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(50)
        again = catalog.acquire("w", "ann", 100)
        assert (again.fence, again.expires) == (lease.fence, lease.expires + 50)
        clock.advance(500)  # It expired and nobody took it.
        late = catalog.acquire("w", "ann", 100)
        assert late.fence == lease.fence
        assert late.expires == clock.now_ns() + 100

    def test_an_expired_lease_can_be_taken(self, catalog: Catalog, clock: ManualClock) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(100)
        assert catalog.lease("w") == lease
        taken = catalog.acquire("w", "bob", 100)
        assert taken.fence > lease.fence
        assert catalog.lease("w") == taken
        with pytest.raises(Refused) as caught:
            catalog.acquire("w", "ann", 100)
        assert caught.value.kind == "lease_held"

    def test_extend_moves_the_expiry_and_keeps_the_fence(
        self, catalog: Catalog, clock: ManualClock
    ) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(90)
        longer = catalog.extend(lease, 100)
        assert longer == Lease("w", "ann", lease.fence, clock.now_ns() + 100)
        assert catalog.lease("w") == longer
        assert catalog.extend(lease, 500).expires == clock.now_ns() + 500

    def test_extend_after_expiry_succeeds_if_nobody_took_the_lease(
        self, catalog: Catalog, clock: ManualClock
    ) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(1000)
        assert catalog.extend(lease, 100).fence == lease.fence
        with pytest.raises(Refused):
            catalog.acquire("w", "bob", 100)

    def test_extend_of_a_lost_lease_is_refused(self, catalog: Catalog, clock: ManualClock) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(100)
        taken = catalog.acquire("w", "bob", 100)
        with pytest.raises(Refused) as caught:
            catalog.extend(lease, 100)
        assert caught.value.kind == "lease_lost"
        assert catalog.lease("w") == taken

    @pytest.mark.parametrize("end", ["release", "seize"])
    def test_an_ended_lease_is_free_for_all(self, catalog: Catalog, end: str) -> None:
        lease = catalog.acquire("w", "ann", 100)
        getattr(catalog, end)(lease)
        assert catalog.lease("w") is None
        with pytest.raises(Refused) as caught:
            catalog.extend(lease, 100)
        assert caught.value.kind == "lease_lost"
        self._check_refused(catalog, lease)
        assert catalog.acquire("w", "bob", 100).fence > lease.fence

    @pytest.mark.parametrize("end", ["release", "seize"])
    def test_a_former_owner_gets_a_new_fence(self, catalog: Catalog, end: str) -> None:
        lease = catalog.acquire("w", "ann", 100)
        getattr(catalog, end)(lease)
        assert catalog.acquire("w", "ann", 100).fence > lease.fence

    @pytest.mark.parametrize("end", ["release", "seize"])
    def test_ending_a_lost_lease_does_nothing(
        self, catalog: Catalog, clock: ManualClock, end: str
    ) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(100)
        taken = catalog.acquire("w", "bob", 100)
        getattr(catalog, end)(lease)
        assert catalog.lease("w") == taken
        getattr(catalog, end)(taken)
        getattr(catalog, end)(taken)

    def test_a_live_lease_lets_moves_pass(self, catalog: Catalog, clock: ManualClock) -> None:
        lease = catalog.acquire("w", "ann", 100)
        catalog.move([Move("h", None, make_oid(1))], verb="commit", lease=lease)
        catalog.extend(lease, 500)
        clock.advance(499)  # The lease object of the caller has an earlier expiry than the catalog.
        catalog.move([Move("h", make_oid(1), make_oid(2))], verb="commit", lease=lease)

    def test_a_stale_lease_moves_nothing(self, catalog: Catalog, clock: ManualClock) -> None:
        lease = catalog.acquire("w", "ann", 100)
        clock.advance(100)  # expired
        self._check_refused(catalog, lease)
        taken = catalog.acquire("w", "bob", 100)
        self._check_refused(catalog, lease)
        catalog.release(taken)
        self._check_refused(catalog, lease)
        self._check_refused(catalog, Lease("never", "ann", 1, clock.now_ns() + 100))

    def test_a_forged_lease_moves_nothing(self, catalog: Catalog) -> None:
        lease = catalog.acquire("w", "ann", 100)
        self._check_refused(catalog, Lease("w", "bob", lease.fence, lease.expires))
        self._check_refused(catalog, Lease("w", "abe", lease.fence, lease.expires))
        self._check_refused(catalog, Lease("w", "ann", lease.fence + 1, lease.expires))
        self._check_refused(catalog, Lease("w", "ann", lease.fence - 1, lease.expires))

    def test_an_earlier_lease_of_the_same_owner_moves_nothing(self, catalog: Catalog) -> None:
        earlier = catalog.acquire("w", "ann", 100)
        catalog.release(earlier)
        catalog.acquire("w", "ann", 100)
        self._check_refused(catalog, earlier)

    def test_a_lease_may_last_one_nanosecond(self, catalog: Catalog, clock: ManualClock) -> None:
        assert catalog.acquire("w", "ann", 1).expires == clock.now_ns() + 1

    def _check_refused(self, catalog: Catalog, lease: Lease) -> None:
        with pytest.raises(Refused) as caught:
            catalog.move(
                [Move("h", None, make_oid(1))],
                verb="commit",
                lease=lease,
                rows=[RowChange("k", "k", b"")],
            )
        assert caught.value.kind == "lease_lost"
        assert catalog.head("h") is None
        assert catalog.row("k", "k") is None

    @pytest.mark.parametrize("ttl", [0, -1])
    def test_a_ttl_below_one_is_refused(self, catalog: Catalog, ttl: int) -> None:
        lease = catalog.acquire("w", "ann", 100)
        with pytest.raises(Invalid) as caught:
            catalog.acquire("v", "ann", ttl)
        assert caught.value.kind == "bad_ttl"
        with pytest.raises(Invalid) as caught:
            catalog.extend(lease, ttl)
        assert caught.value.kind == "bad_ttl"
        assert catalog.lease("v") is None

    def test_a_very_long_ttl_never_expires(self, catalog: Catalog, clock: ManualClock) -> None:
        lease = catalog.acquire("w", "ann", 2**63)
        clock.advance(10**17)
        assert catalog.lease("w") == lease
        assert lease.expires > clock.now_ns()

    def test_fences_only_grow(self, catalog: Catalog, clock: ManualClock) -> None:
        fences = []
        for n in range(12):
            lease = catalog.acquire("w", f"owner-{n}", 100)
            fences.append(lease.fence)
            if n % 3 == 0:
                clock.advance(100)
            elif n % 3 == 1:
                catalog.release(lease)
            else:
                catalog.seize(lease)
        assert fences == sorted(set(fences))

    def test_threads_get_different_fences(self, catalog: Catalog) -> None:
        def cycle(owner: str) -> list[int]:
            fences: list[int] = []
            while len(fences) < 10:
                try:
                    lease = catalog.acquire("w", owner, 10**12)
                except Refused:
                    continue
                fences.append(lease.fence)
                catalog.release(lease)
            return fences

        found = run_in_threads(cycle, [(f"owner-{n}",) for n in range(4)])
        every = [fence for fences in found for fence in fences]
        assert len(set(every)) == 40
        assert all(fences == sorted(fences) for fences in found)

    def test_one_of_many_processes_acquires_the_lease(
        self, catalog: Catalog, opener: CatalogOpener
    ) -> None:
        owners = [f"owner-{n}" for n in range(4)]
        fences = run_in_processes(try_lease, [(opener, "w", owner) for owner in owners])
        winners = [fence for fence in fences if fence]
        lease = catalog.lease("w")
        assert lease is not None
        assert winners == [lease.fence]
        assert lease.owner == owners[fences.index(lease.fence)]


# Tests of versioned rows; part of CatalogTests.


class RowTests:
    def test_a_missing_row_is_none(self, catalog: Catalog) -> None:
        assert catalog.row("kind", "key") is None
        assert catalog.rows("kind") == []

    @pytest.mark.parametrize("value", [b"", b"\0\xff\0", b"x" * 100_000])
    def test_a_row_value_can_be_any_bytes(self, catalog: Catalog, value: bytes) -> None:
        row = catalog.put_row("kind", "key", value)
        assert row == CatalogRow("kind", "key", value, row.version)
        assert catalog.row("kind", "key") == row

    def test_every_write_raises_the_version(self, catalog: Catalog) -> None:
        versions = [catalog.put_row("kind", "key", bytes([n])).version for n in range(3)]
        assert versions == [versions[0], versions[0] + 1, versions[0] + 2]
        assert versions[0] > 0

    def test_write_with_the_expected_version_succeeds(self, catalog: Catalog) -> None:
        first = catalog.put_row("kind", "key", b"1", expect=0)
        second = catalog.put_row("kind", "key", b"2", expect=first.version)
        assert catalog.row("kind", "key") == second

    def test_write_with_a_wrong_version_is_refused(self, catalog: Catalog) -> None:
        row = catalog.put_row("kind", "key", b"1")
        for expect in (0, row.version + 1):
            with pytest.raises(Conflict) as caught:
                catalog.put_row("kind", "key", b"2", expect)
            assert caught.value.kind == "row_moved"
            assert caught.value.details["found"] == row.version
        with pytest.raises(Conflict) as caught:
            catalog.put_row("kind", "absent", b"2", 1)
        assert caught.value.details["found"] == 0
        assert catalog.rows("kind") == [row]

    def test_dropping_a_row_removes_it_and_may_be_repeated(self, catalog: Catalog) -> None:
        catalog.put_row("kind", "key", b"1")
        catalog.drop_row("kind", "key")
        catalog.drop_row("kind", "key")
        assert catalog.row("kind", "key") is None

    def test_a_recreated_row_has_a_higher_version(self, catalog: Catalog) -> None:
        old = catalog.put_row("kind", "key", b"old")
        catalog.drop_row("kind", "key")
        new = catalog.put_row("kind", "key", b"new", expect=0)
        assert new.version > old.version
        with pytest.raises(Conflict):
            catalog.put_row("kind", "key", b"late", expect=old.version)

    def test_rows_of_different_kinds_and_keys_are_independent(self, catalog: Catalog) -> None:
        catalog.put_row("a", "bc", b"1")
        catalog.put_row("ab", "c", b"2")
        catalog.put_row("a", "b", b"3")
        assert [row.value for row in catalog.rows("a")] == [b"3", b"1"]
        assert [row.value for row in catalog.rows("ab")] == [b"2"]
        catalog.drop_row("a", "bc")
        assert catalog.row("ab", "c") is not None

    def test_pages_are_in_key_order(self, catalog: Catalog) -> None:
        keys = ["A", "a", "a/1", "a/10", "a/2", "b", "é", "日本", "🌱"]
        for key in reversed(keys):
            catalog.put_row("kind", key, key.encode())
        catalog.put_row("other", "a/1", b"")
        seen: list[str] = []
        while page := catalog.rows("kind", seen[-1] if seen else "", 4):
            assert len(page) <= 4
            seen += [row.key for row in page]
        assert seen == keys

    @pytest.mark.parametrize(("kind", "key"), [("", "key"), ("kind", ""), ("kind", "a\0b")])
    def test_an_invalid_row_name_is_refused(self, catalog: Catalog, kind: str, key: str) -> None:
        for write in (
            lambda: catalog.put_row(kind, key, b""),
            lambda: catalog.put_row(kind, key, b"", expect=0),
            lambda: catalog.drop_row(kind, key),
        ):
            with pytest.raises(Invalid) as caught:
                write()
            assert caught.value.kind == "bad_name"

    def test_threads_lose_no_write(self, catalog: Catalog) -> None:
        def add(times: int) -> None:
            for _ in range(times):
                while True:
                    row = catalog.row("kind", "sum")
                    value = int(row.value) if row else 0
                    try:
                        expect = row.version if row else 0
                        catalog.put_row("kind", "sum", b"%d" % (value + 1), expect)
                        break
                    except Conflict:
                        continue

        run_in_threads(add, [(20,)] * 4)
        row = catalog.row("kind", "sum")
        assert row is not None
        assert row.value == b"80"

    def test_check_of_a_sound_catalog_reports_nothing(self, catalog: Catalog) -> None:
        catalog.put_row("kind", "key", b"1")
        assert catalog.check() == []


BAD_NAMES = ["", "a\0b", "\udc80", "x" * 5000]


class CatalogTests(HeadTests, LeaseTests, RowTests, EventTests):
    """Tests of a catalog. Supply the fixture `opener`; see the module."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def catalog(self, opener: CatalogOpener, clock: ManualClock) -> Iterator[Catalog]:
        catalog = opener(clock)
        yield catalog
        catalog.close()

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_reading_verbs_refuse_invalid_names(self, catalog: Catalog, name: str) -> None:
        for read in (
            lambda: catalog.head(name),
            lambda: catalog.ops(name),
            lambda: catalog.lease(name),
            lambda: catalog.row(name, "key"),
            lambda: catalog.row("kind", name),
            lambda: catalog.rows(name),
        ):
            with pytest.raises(Invalid) as caught:
                read()
            assert caught.value.kind == "bad_name"

    @pytest.mark.parametrize("limit", [0, -1])
    def test_a_page_limit_below_one_is_refused(self, catalog: Catalog, limit: int) -> None:
        for read in (
            lambda: catalog.heads(limit=limit),
            lambda: catalog.ops(limit=limit),
            lambda: catalog.ops("name", limit=limit),
            lambda: catalog.rows("kind", limit=limit),
        ):
            with pytest.raises(Invalid) as caught:
                read()
            assert caught.value.kind == "bad_limit"

    def test_rows_outlive_the_handle(self, opener: CatalogOpener, clock: ManualClock) -> None:
        first = opener(clock)
        row = first.put_row("kind", "key", b"value")
        first.close()
        assert opener(clock).row("kind", "key") == row

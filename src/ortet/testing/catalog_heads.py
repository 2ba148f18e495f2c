"""Tests of heads and the operation log; part of CatalogTests."""

from __future__ import annotations

import pytest

from ortet.backends.base import Catalog, Head, Move, Op, RowChange
from ortet.errors import Conflict, Invalid
from ortet.ids import Oid
from ortet.testing.clock import ManualClock
from ortet.testing.processes import (
    CatalogOpener,
    increment_head,
    make_oid,
    run_in_processes,
    run_in_threads,
)

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

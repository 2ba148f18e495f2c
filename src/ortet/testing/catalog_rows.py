"""Tests of versioned rows; part of CatalogTests."""

from __future__ import annotations

import pytest

from ortet.backends.base import Catalog, CatalogRow
from ortet.errors import Conflict, Invalid
from ortet.testing.processes import run_in_threads


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

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

from ortet.backends.base import Catalog
from ortet.errors import Invalid
from ortet.testing.catalog_events import EventTests
from ortet.testing.catalog_heads import HeadTests
from ortet.testing.catalog_leases import LeaseTests
from ortet.testing.catalog_rows import RowTests
from ortet.testing.clock import ManualClock
from ortet.testing.processes import CatalogOpener

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

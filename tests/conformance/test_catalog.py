"""Every catalog through the shipped suite."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ortet.backends.sqlite.catalog import SqliteCatalog
from ortet.testing.catalog import CatalogTests
from ortet.testing.processes import CatalogOpener


class TestSqliteCatalog(CatalogTests):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> CatalogOpener:
        return partial(SqliteCatalog, tmp_path / "catalog.db")

"""The catalog in PostgreSQL through the shipped suite, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from tests.fixtures.postgres import Shared, drop_schema, new_schema, shared, wipe_schema

from ortet.backends.postgres.catalog import PostgresCatalog
from ortet.testing.catalog import CatalogTests
from ortet.testing.processes import CatalogOpener


@pytest.fixture(scope="module")
def place(postgres: Shared) -> Iterator[tuple[str, str]]:
    url, schema = shared().url(), new_schema()
    PostgresCatalog(url, schema=schema).close()
    yield url, schema
    drop_schema(url, schema)


class TestPostgresCatalog(CatalogTests):
    @pytest.fixture
    def opener(self, place: tuple[str, str]) -> Iterator[CatalogOpener]:
        url, schema = place
        yield partial(PostgresCatalog, url, schema=schema)
        wipe_schema(url, schema)

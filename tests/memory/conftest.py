"""An index in each place where there may be one: whatever is asked of it has the same answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.postgres import Shared, drop_schema, new_schema, shared

from ortet.memory.base import WordIndex
from ortet.memory.lexical.index import SqliteWordIndex

if TYPE_CHECKING:  # the quick run has no psycopg
    from ortet.backends.postgres.catalog import PostgresCatalog
    from ortet.memory.postgres.index import PostgresWordIndex


@pytest.fixture(scope="session")
def catalog(postgres: Shared) -> Iterator[PostgresCatalog]:
    """A catalog in a schema of its own."""
    from ortet.backends.postgres.catalog import PostgresCatalog

    schema = new_schema()
    made = PostgresCatalog(shared().url(), schema=schema)
    yield made
    made.close()
    drop_schema(shared().url(), schema)


@pytest.fixture
def in_database(catalog: PostgresCatalog) -> PostgresWordIndex:
    from ortet.memory.postgres.index import PostgresWordIndex

    made = PostgresWordIndex(catalog.client)
    made.forget(None)
    return made


@pytest.fixture(params=["file", pytest.param("database", marks=pytest.mark.postgres)])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WordIndex]:
    if request.param == "database":
        yield request.getfixturevalue("in_database")
        return
    made = SqliteWordIndex(tmp_path / "index.db")
    yield made
    made.close()

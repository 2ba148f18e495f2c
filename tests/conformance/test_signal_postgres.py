"""Signal through PostgreSQL itself, by the shipped suite."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from uuid import uuid4

import pytest
from tests.fixtures.postgres import Shared, drop_schema, new_schema, shared

from ortet.backend.postgres import PostgresCatalog
from ortet.backend.postgres_pool import Database
from ortet.backend.postgres_signal import PostgresSignal
from ortet.testing.processes import SignalOpener
from ortet.testing.signal import SharedSignalTests


@pytest.fixture(scope="module")
def database(postgres: Shared) -> Iterator[Database]:
    schema = new_schema()
    catalog = PostgresCatalog(shared().url(), schema=schema)
    yield catalog.database
    catalog.close()
    drop_schema(shared().url(), schema)


class TestPostgresSignal(SharedSignalTests):
    @pytest.fixture
    def opener(self, database: Database) -> SignalOpener:
        return partial(PostgresSignal, database, uuid4().hex)

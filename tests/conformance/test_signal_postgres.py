"""Signal through PostgreSQL itself, by the shipped suite."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from uuid import uuid4

import pytest
from tests.fixtures.postgres import Shared, drop_schema, new_schema, shared

from ortet.backends.postgres.catalog import PostgresCatalog
from ortet.backends.postgres.notify import postgres_signal
from ortet.backends.postgres.pool import PostgresDatabase
from ortet.testing.processes import SignalOpener
from ortet.testing.signal import SharedSignalTests


@pytest.fixture(scope="module")
def database(postgres: Shared) -> Iterator[PostgresDatabase]:
    schema = new_schema()
    catalog = PostgresCatalog(shared().url(), schema=schema)
    yield catalog.database
    catalog.close()
    drop_schema(shared().url(), schema)


class TestPostgresSignal(SharedSignalTests):
    @pytest.fixture
    def opener(self, database: PostgresDatabase) -> SignalOpener:
        return partial(postgres_signal, database, uuid4().hex)

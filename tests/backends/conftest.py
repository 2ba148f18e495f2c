"""Catalogs, and signals that wait as long as it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.postgres import shared
from tests.fixtures.waiting import WAIT

from ortet.backends import pubsub
from ortet.backends.postgres.catalog import PostgresCatalog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a SQLite catalog."""
    return tmp_path / "catalog.db"


@pytest.fixture
def catalog(schema: str) -> Iterator[PostgresCatalog]:
    """A catalog on PostgreSQL, in a schema of its own."""
    catalog = PostgresCatalog(shared().url(), schema=schema)
    yield catalog
    catalog.close()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a signal that is closed send all that it has, however slow the host is."""
    monkeypatch.setattr(pubsub, "_FLUSH_TIMEOUT_SECONDS", WAIT)

"""Session pools on the store of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.rooms import Make

import ortet
from ortet.server.session_pool.pool import SessionPool


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make rooms on one store, as several servers have them; all are closed at the end."""
    with ExitStack() as last:

        def made(**settings: Any) -> SessionPool:
            rooms = SessionPool(lambda: ortet.open(tmp_path / "store"), **settings)
            last.callback(rooms.close, 0.0)
            return rooms

        yield made

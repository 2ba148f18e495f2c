"""A store of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ortet
from ortet.session.hub import Hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with ortet.open(tmp_path / "store") as opened:
        yield opened

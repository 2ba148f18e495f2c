"""A store of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ortet.config import open_hub
from ortet.session.hub import Hub


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    home = tmp_path / "nobody"  # not there, unless a test keeps keys
    with open_hub(str(tmp_path / "store"), environ={"HOME": str(home)}) as opened:
        yield opened

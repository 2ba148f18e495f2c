"""Programs as agents run them, in live machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.lives import Life
from tests.live.outside import Outside


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    life = Life(tmp_path)
    yield life
    life.close()


@pytest.fixture
def outside(request: pytest.FixtureRequest) -> Iterator[Outside]:
    """To be asked for before `life`, whose machines are then in it."""
    assert "life" not in request.fixturenames or request.fixturenames.index(
        "outside"
    ) < request.fixturenames.index("life")
    world = Outside()
    yield world
    world.close()

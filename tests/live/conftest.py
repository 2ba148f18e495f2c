"""Programs as agents run them, in live machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.lives import Life

from ortet.machine.mounts import privileged


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    if not privileged():
        pytest.skip("live machines need root")
    life = Life(tmp_path)
    yield life
    life.close()

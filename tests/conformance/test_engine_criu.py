"""The process engine through the shipped suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ortet.history.tree.tree import Trees
from ortet.ids import SystemClock
from ortet.machines.base import Engine
from ortet.machines.live.engine import CriuEngine
from ortet.objects.store import PackedObjectStore
from ortet.testing.engine import EngineTests

pytestmark = pytest.mark.criu


class TestCriu(EngineTests):
    @pytest.fixture
    def engine(self, objects: PackedObjectStore, trees: Trees, tmp_path: Path) -> Iterator[Engine]:
        engine = CriuEngine(objects, trees, SystemClock(), root=tmp_path / "store")
        yield engine
        engine.close()

"""The process engine through the shipped suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ortet.graph.tree import Trees
from ortet.ids import SystemClock
from ortet.machine.abc import Engine
from ortet.machine.criu import CriuEngine
from ortet.store.objects import LocalObjects
from ortet.testing.engine import EngineTests

pytestmark = pytest.mark.criu


class TestCriu(EngineTests):
    @pytest.fixture
    def engine(self, objects: LocalObjects, trees: Trees, tmp_path: Path) -> Iterator[Engine]:
        engine = CriuEngine(objects, trees, SystemClock(), root=tmp_path / "store")
        yield engine
        engine.close()

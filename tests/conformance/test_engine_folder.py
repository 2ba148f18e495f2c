"""The folder engine through the shipped suite, with a watcher and without."""

from __future__ import annotations

import pytest

from ortet.history.tree.tree import Trees
from ortet.ids import SystemClock
from ortet.machines.base import Engine
from ortet.machines.folder import FolderEngine
from ortet.objects.store import PackedObjectStore
from ortet.testing.engine import EngineTests, InPlaceTests


class TestWatched(EngineTests, InPlaceTests):
    @pytest.fixture
    def engine(self, objects: PackedObjectStore, trees: Trees) -> Engine:
        return FolderEngine(objects, trees, SystemClock(), watch=True)


class TestScanned(EngineTests, InPlaceTests):
    @pytest.fixture
    def engine(self, objects: PackedObjectStore, trees: Trees) -> Engine:
        return FolderEngine(objects, trees, SystemClock(), watch=False)

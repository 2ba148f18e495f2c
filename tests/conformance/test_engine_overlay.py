"""The overlay engine through the shipped suite, in both scopes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from ortet.history.tree.tree import Trees
from ortet.ids import SystemClock
from ortet.machines.base import Engine, MachineSpec
from ortet.machines.overlay.engine import OverlayEngine
from ortet.machines.overlay.layers.home import LayerLayout
from ortet.machines.overlay.machine import OverlayMachine
from ortet.objects.store import PackedObjectStore
from ortet.testing.engine import EngineTests

pytestmark = pytest.mark.overlay


class HostScoped(OverlayEngine):
    """Opens every machine over the whole host."""

    def open(self, spec: MachineSpec) -> OverlayMachine:
        return super().open(replace(spec, scope="host"))

    def _fork(
        self,
        specs: Sequence[MachineSpec],
        layout: LayerLayout,
        while_starting: Callable[[], None],
    ) -> list[OverlayMachine]:
        over = [replace(spec, scope="host") for spec in specs]
        return super()._fork(over, layout, while_starting)


class TestWorkspaceScope(EngineTests):
    @pytest.fixture
    def engine(self, objects: PackedObjectStore, trees: Trees, tmp_path: Path) -> Engine:
        return OverlayEngine(objects, trees, SystemClock(), root=tmp_path / "store")


class TestHostScope(EngineTests):
    @pytest.fixture
    def engine(self, objects: PackedObjectStore, trees: Trees, tmp_path: Path) -> Engine:
        return HostScoped(objects, trees, SystemClock(), root=tmp_path / "store")

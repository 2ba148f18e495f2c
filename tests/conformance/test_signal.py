"""Every signal through the shipped suite."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ortet.backends.base import Signal
from ortet.backends.local.signal import HostSignal, ProcessSignal
from ortet.testing.processes import SignalOpener
from ortet.testing.signal import SharedSignalTests, SignalTests


class TestProcessSignal(SignalTests):
    @pytest.fixture
    def signal(self) -> Signal:
        return ProcessSignal()


class TestHostSignal(SharedSignalTests):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> SignalOpener:
        return partial(HostSignal, tmp_path / "signal")


class _Plain(ProcessSignal):
    """One that cannot tell of all topics at once."""

    wait_any = Signal.wait_any


class TestPlainSignal(SignalTests):
    @pytest.fixture
    def signal(self) -> Signal:
        return _Plain()

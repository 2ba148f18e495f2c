"""Every cache through the shipped suite."""

from __future__ import annotations

import pytest

from ortet.backends.base import Cache
from ortet.backends.local.memory import NoCache, ProcessCache
from ortet.testing.cache import AbsentCacheTests, CacheTests, Elapse
from ortet.testing.clock import ManualClock


class TestProcessCache(CacheTests):
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def cache(self, clock: ManualClock) -> Cache:
        return ProcessCache(clock, limit=16 << 20)

    @pytest.fixture
    def elapse(self, clock: ManualClock) -> Elapse:
        return clock.advance


class TestNoCache(AbsentCacheTests):
    @pytest.fixture
    def cache(self) -> Cache:
        return NoCache()

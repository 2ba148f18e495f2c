"""Catalog, Bucket and Signal over HTTP through the shipped suites, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.fixtures.remote_hub import serving

from ortet.backends.base import Bucket, Catalog, Signal
from ortet.backends.remote.bucket import HttpBucket
from ortet.backends.remote.catalog import HttpCatalog
from ortet.backends.remote.client import RemoteClient
from ortet.backends.remote.signal import HttpSignal
from ortet.ids import Clock
from ortet.testing.bucket import SharedBucketTests
from ortet.testing.catalog import CatalogTests
from ortet.testing.clock import ManualClock
from ortet.testing.processes import BucketOpener, CatalogOpener, SignalOpener
from ortet.testing.signal import SharedSignalTests

pytestmark = pytest.mark.server


def open_catalog(url: str, clock: Clock) -> Catalog:
    return HttpCatalog(RemoteClient(url), clock)


def open_bucket(url: str) -> Bucket:
    return HttpBucket(RemoteClient(url))


def open_signal(url: str) -> Signal:
    return HttpSignal(RemoteClient(url))


class TestHttpCatalog(CatalogTests):
    @pytest.fixture
    def opener(self, tmp_path: Path, clock: ManualClock) -> Iterator[CatalogOpener]:
        with serving(tmp_path / "store", clock=clock) as url:
            yield partial(open_catalog, url)


class TestHttpBucket(SharedBucketTests):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Iterator[BucketOpener]:
        with serving(tmp_path / "store") as url:
            yield partial(open_bucket, url)


class TestHttpSignal(SharedSignalTests):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Iterator[SignalOpener]:
        with serving(tmp_path / "store") as url:
            yield partial(open_signal, url)

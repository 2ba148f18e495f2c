"""Signal and cache on a real Valkey server through the shipped suites."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from uuid import uuid4

import pytest
from tests.fixtures.valkey import Server, valkey_server
from tests.fixtures.waiting import WAIT

from ortet.backends.base import Cache
from ortet.backends.valkey.address import parse_valkey_url
from ortet.backends.valkey.cache import ValkeyCache
from ortet.backends.valkey.client import ValkeyClient
from ortet.backends.valkey.signal import valkey_signal
from ortet.testing.cache import AbsentCacheTests, CacheTests, Elapse
from ortet.testing.processes import SignalOpener
from ortet.testing.signal import SharedSignalTests

pytestmark = pytest.mark.valkey


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with valkey_server() as server:
        yield server


class TestValkeySignal(SharedSignalTests):
    @pytest.fixture
    def opener(self, server: Server) -> SignalOpener:
        return partial(valkey_signal, parse_valkey_url(server.url), uuid4().hex)


_STRETCH = 60
"""A second of the suite is a minute of the server's: a host that is slow does not matter."""


class _Slow(ValkeyCache):
    def put(self, key: str, value: bytes, ttl_ns: int | None = None) -> None:
        # what is no time is refused as always
        good = type(ttl_ns) is int and ttl_ns > 0
        super().put(key, value, ttl_ns * _STRETCH if good and ttl_ns else ttl_ns)


class TestValkeyCache(CacheTests):
    @pytest.fixture
    def cache(self, server: Server) -> Iterator[Cache]:
        cache = _Slow(
            ValkeyClient(parse_valkey_url(server.url), answer_timeout=WAIT),
            uuid4().hex,
            limit=100 << 20,
        )
        yield cache
        cache.close()
        server.ask("FLUSHALL")

    @pytest.fixture
    def elapse(self, server: Server) -> Elapse:
        def elapse(ns: int) -> None:
            for key in server.ask("KEYS", "*"):
                left = server.ask("PTTL", key)
                if left > 0:
                    server.ask("PEXPIRE", key, left - ns * _STRETCH // 1_000_000)

        return elapse


class TestGone(AbsentCacheTests):
    @pytest.fixture
    def cache(self, server: Server) -> Iterator[Cache]:
        link = ValkeyClient(parse_valkey_url(f"{server.url}-nobody"))
        cache = ValkeyCache(link, "space")
        yield cache
        cache.close()


class TestStopped(AbsentCacheTests):
    @pytest.fixture
    def cache(self) -> Iterator[Cache]:
        with valkey_server() as server:
            cache = ValkeyCache(ValkeyClient(parse_valkey_url(server.url)), "space")
            server.pause()
            yield cache
            cache.close()

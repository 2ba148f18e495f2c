"""A cache and a signal on a Valkey server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fixtures.valkey import Server
from tests.fixtures.waiting import WAIT

from ortet.backends.pubsub import PubSubSignal
from ortet.backends.valkey.address import parse_valkey_url
from ortet.backends.valkey.cache import ValkeyCache
from ortet.backends.valkey.client import ValkeyClient
from ortet.backends.valkey.signal import valkey_signal


@pytest.fixture
def cache(valkey: Server) -> Iterator[ValkeyCache]:
    cache = ValkeyCache(ValkeyClient(parse_valkey_url(valkey.url), answer_timeout=WAIT), "space")
    yield cache
    cache.close()


@pytest.fixture
def hears(valkey: Server) -> Iterator[PubSubSignal]:
    signal = valkey_signal(parse_valkey_url(valkey.url), "space")
    yield signal
    signal.close()

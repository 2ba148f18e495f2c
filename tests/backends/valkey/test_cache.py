"""The cache on a Valkey server that is killed, stopped, flushed or full."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.fixtures.valkey import Server
from tests.fixtures.waiting import WAIT, eventually

from ortet.backends.valkey.address import parse_valkey_url
from ortet.backends.valkey.cache import ValkeyCache
from ortet.backends.valkey.client import ValkeyClient
from ortet.errors import Invalid

pytestmark = [pytest.mark.valkey, pytest.mark.usefixtures("unhurried")]


@contextmanager
def cut_off(cache: ValkeyCache) -> Iterator[None]:
    """As one that has just found its server gone."""
    cache._client._retry_at = time.monotonic() + WAIT
    yield
    cache._client._retry_at = 0.0


def kept(cache: ValkeyCache, key: str, value: bytes) -> bool:
    cache.put(key, value)
    return cache.get(key) == value


def test_a_cache_is_empty_while_the_server_is_down_and_works_after_restart(
    cache: ValkeyCache, valkey: Server
) -> None:
    cache.put("key", b"value")
    valkey.kill()
    assert cache.get("key") is None
    cache.put("key", b"other")
    valkey.start()
    eventually(lambda: kept(cache, "key", b"third"))


def test_values_restored_by_a_server_restart_are_not_returned(
    cache: ValkeyCache, valkey: Server
) -> None:
    cache.put("replaced", b"old")
    cache.put("dropped/1", b"old")
    valkey.ask("SAVE")
    cache.put("replaced", b"new")
    cache.drop("dropped/")
    valkey.kill()
    valkey.start()
    assert valkey.ask("DBSIZE") == 2  # the state of before, both of them
    eventually(lambda: kept(cache, "probe", b""))
    assert cache.get("replaced") is None
    assert cache.get("dropped/1") is None
    cache.clear()  # also what is not given any more
    assert valkey.ask("DBSIZE") == 0


def test_a_cache_works_after_a_server_flush(cache: ValkeyCache, valkey: Server) -> None:
    cache.put("key", b"value")
    valkey.ask("FLUSHALL")
    valkey.ask("SCRIPT", "FLUSH")
    assert cache.get("key") is None
    assert kept(cache, "key", b"again")


def test_a_value_whose_drop_failed_is_not_returned(cache: ValkeyCache, valkey: Server) -> None:
    other = ValkeyCache(ValkeyClient(parse_valkey_url(valkey.url), answer_timeout=WAIT), "space")
    other.put("secret/1", b"theirs")
    cache.put("secret/2", b"ours")
    cache.put("public", b"seen")
    with cut_off(cache):
        cache.drop("secret/")
    assert other.get("secret/1") == b"theirs"  # the server was not told
    assert cache.get("public") == b"seen"
    assert cache.get("secret/1") is cache.get("secret/2") is None
    assert other.get("secret/1") is None  # and now it was
    other.put("secret/1", b"new")
    assert cache.get("secret/1") == b"new"
    other.close()


def test_a_failed_put_does_not_leave_the_old_value(cache: ValkeyCache) -> None:
    cache.put("key", b"old")
    with cut_off(cache):
        cache.put("key", b"new")
    assert cache.get("key") is None


def test_a_server_that_is_full_does_not_leave_the_old_one(
    cache: ValkeyCache, valkey: Server
) -> None:
    cache.put("key", b"old")
    valkey.ask("CONFIG", "SET", "maxmemory", "1")
    cache.put("key", b"new")
    assert cache.get("key") is None
    valkey.ask("CONFIG", "SET", "maxmemory", "0")
    assert kept(cache, "key", b"new")


def test_a_put_that_arrives_after_its_timeout_is_not_applied(valkey: Server) -> None:
    """A server that was stopped does what it was told when it goes on."""
    cache = ValkeyCache(ValkeyClient(parse_valkey_url(valkey.url), answer_timeout=0.1), "space")
    eventually(lambda: kept(cache, "key", b"first"))
    [key] = valkey.ask("KEYS", "*:key")
    before = _scripts(valkey)
    valkey.pause()
    cache.put("key", b"given up")
    valkey.resume()
    eventually(lambda: _scripts(valkey) > before)
    assert valkey.ask("GET", key) == b"first"
    eventually(lambda: kept(cache, "probe", b""))
    assert cache.get("key") is None
    cache.close()


def _scripts(valkey: Server) -> int:
    """How many puts it has done, or refused to do."""
    told = valkey.ask("INFO", "commandstats").decode()
    return int(told.partition("cmdstat_evalsha:calls=")[2].partition(",")[0] or 0)


def test_a_stopped_server_is_asked_once_a_second(valkey: Server) -> None:
    cache = ValkeyCache(ValkeyClient(parse_valkey_url(valkey.url), answer_timeout=0.5), "space")
    eventually(lambda: kept(cache, "key", b"value"))
    valkey.pause()
    begun = time.monotonic()
    assert cache.get("key") is None
    assert time.monotonic() - begun >= 0.5  # it was waited for, once
    with cut_off(cache):  # that second may be over on a slow host
        for n in range(1000):
            assert cache.get(f"key/{n}") is None
            cache.put(f"key/{n}", b"")
    valkey.resume()
    eventually(lambda: kept(cache, "key/1", b"value"))
    cache.close()


def test_too_many_failed_writes_clear_the_whole_cache(cache: ValkeyCache) -> None:
    cache.put("key", b"value")
    with cut_off(cache):
        for n in range(1500):
            cache.put(f"key/{n}", b"")
    assert cache.get("key") is None  # may be forgotten
    assert kept(cache, "key", b"again")


def test_caches_of_different_spaces_are_isolated(cache: ValkeyCache, valkey: Server) -> None:
    other = ValkeyCache(ValkeyClient(parse_valkey_url(valkey.url), answer_timeout=WAIT), "spac")
    cache.put("key", b"value")
    assert other.get("key") is None
    other.clear()
    assert cache.get("key") == b"value"
    other.close()
    with pytest.raises(Invalid) as caught:
        ValkeyCache(ValkeyClient(parse_valkey_url(valkey.url)), "a:b*")
    assert caught.value.kind == "bad_space"


def test_a_value_without_a_ttl_expires_within_a_day(cache: ValkeyCache, valkey: Server) -> None:
    cache.put("key", b"value")
    [key] = valkey.ask("KEYS", "*")
    assert 0 < valkey.ask("PTTL", key) <= 24 * 3600 * 1000


def test_clients_share_one_rate_limit_bucket(cache: ValkeyCache, valkey: Server) -> None:
    other = ValkeyCache(ValkeyClient(parse_valkey_url(valkey.url), answer_timeout=WAIT), "space")
    taken = [(cache, other)[n % 2].take_token("name", rate=0.001, burst=4) for n in range(4)]
    assert taken == [0.0] * 4
    waits = [one.take_token("name", rate=0.001, burst=4) for one in (cache, other)]
    assert all(wait is not None and 900 < wait <= 1000 for wait in waits)
    assert other.take_token("another", rate=0.001, burst=4) == 0.0
    valkey.kill()
    assert cache.take_token("name", rate=0.001, burst=4) is None
    other.close()

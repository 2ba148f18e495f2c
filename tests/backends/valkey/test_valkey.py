"""Valkey in bad moments: killed, stopped, flushed, refusing: nothing waits for it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fixtures.valkey import Server, valkey_server
from tests.fixtures.waiting import WAIT, eventually

from ortet.backends.pubsub import _CHANNELS, PubSubSignal
from ortet.backends.valkey import client
from ortet.backends.valkey.address import parse_valkey_url
from ortet.backends.valkey.cache import ValkeyCache, open_cache
from ortet.backends.valkey.client import ValkeyClient
from ortet.backends.valkey.signal import open_signal, valkey_signal
from ortet.errors import Invalid, Refused, Unsupported

pytestmark = [pytest.mark.valkey, pytest.mark.usefixtures("unhurried")]


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


@contextmanager
def cut_off(cache: ValkeyCache) -> Iterator[None]:
    """As one that has just found its server gone."""
    cache._client._retry_at = time.monotonic() + WAIT
    yield
    cache._client._retry_at = 0.0


def kept(cache: ValkeyCache, key: str, value: bytes) -> bool:
    cache.put(key, value)
    return cache.get(key) == value


# cache


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


# signal


def test_a_signal_works_again_after_a_server_restart(hears: PubSubSignal, valkey: Server) -> None:
    token = hears.token("topic")
    valkey.kill()
    assert hears.wait("topic", token, WAIT) is True  # anything may have happened
    token = hears.token("topic")
    assert hears.wait("topic", token, WAIT) is True  # each second again
    assert hears.last_error
    hears.notify("topic")  # is no error
    valkey.start()
    eventually(lambda: not hears.last_error)
    token, _ = hears.wait_any(None, 0.0)

    def is_heard() -> bool:
        nonlocal token
        hears.notify("topic")
        token, topics = hears.wait_any(token, 1.0)
        return "topic" in (topics or ())

    eventually(is_heard)


def test_a_paused_server_wakes_waiting_listeners(hears: PubSubSignal, valkey: Server) -> None:
    token = hears.token("topic")
    valkey.pause()
    assert hears.wait("topic", token, WAIT) is True
    valkey.resume()
    eventually(lambda: not hears.last_error)


def test_a_signal_connects_when_the_server_starts_later() -> None:
    valkey = Server()
    signal = valkey_signal(parse_valkey_url(valkey.url), "space")
    try:
        token = signal.token("topic")
        assert signal.wait("topic", token, WAIT) is True
        valkey.start()
        eventually(lambda: not signal.last_error)
    finally:
        signal.close()
        valkey.close()


def test_signals_of_a_process_share_their_connections(valkey: Server) -> None:
    address, others = parse_valkey_url(valkey.url), set(threading.enumerate())
    signals = [valkey_signal(address, "space") for _ in range(20)]
    for signal in signals:
        signal.token("topic")
        signal.notify("topic")
    eventually(lambda: _clients(valkey) == 2)  # one hears, one tells
    for signal in signals:
        signal.close()
    assert not _is_shared(valkey)
    eventually(lambda: _clients(valkey) == 0)
    eventually(lambda: not [t for t in {*threading.enumerate()} - others if "valkey" in t.name])


def _is_shared(valkey: Server) -> bool:
    """Other tests may have left some of their own."""
    address = parse_valkey_url(valkey.url)
    return any(getattr(wire, "address", None) == address for wire in _CHANNELS)


def _clients(valkey: Server) -> int:
    """Without the one who asks."""
    return len(valkey.ask("CLIENT", "LIST").splitlines()) - 1


def test_a_garbage_collected_signal_releases_its_connection(valkey: Server) -> None:
    valkey_signal(parse_valkey_url(valkey.url), "space").token("topic")
    eventually(lambda: not _is_shared(valkey))
    eventually(lambda: _clients(valkey) == 0)


def test_a_narrowed_signal_hears_nothing_else(hears: PubSubSignal) -> None:
    narrow = hears.with_prefix("want")
    token, _ = narrow.wait_any(None, 0.0)
    hears.notify("other")
    hears.notify("want:1")
    _, topics = narrow.wait_any(token, WAIT)
    assert topics is None or topics == {"want:1"}
    narrow.close()
    with pytest.raises(Invalid) as caught:
        hears.with_prefix("a*")
    assert caught.value.kind == "bad_topic"


def test_signals_of_different_spaces_are_isolated(hears: PubSubSignal, valkey: Server) -> None:
    other = valkey_signal(parse_valkey_url(valkey.url), "other")
    token, _ = hears.wait_any(None, 0.0)
    other.notify("theirs")
    other.close()
    hears.notify("ours")
    _, topics = hears.wait_any(token, WAIT)
    assert topics is None or topics == {"ours"}


def test_a_child_has_connections_of_its_own(hears: PubSubSignal, cache: ValkeyCache) -> None:
    cache.put("key", b"value")
    token = hears.token("topic")
    child = os.fork()
    if not child:
        ok = cache.get("key") == b"value"
        hears.notify("topic")
        hears.close()
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert hears.wait("topic", token, WAIT) is True
    assert cache.get("key") == b"value"


# addresses


def test_a_wrong_password_is_refused_by_check_and_caches_nothing() -> None:
    with valkey_server("--requirepass", "right") as valkey:
        for url in (valkey.url, f"{valkey.url}?password_file={_file(valkey, 'wrong')}"):
            link = ValkeyClient(parse_valkey_url(url), answer_timeout=WAIT)
            with pytest.raises(Refused) as caught:
                link.check_login()
            assert caught.value.kind == "login_refused"
            cache = ValkeyCache(link, "space")
            cache.put("key", b"value")
            assert cache.get("key") is None  # as one that is gone
            cache.close()
        good = open_cache(f"{valkey.url}?password_file={_file(valkey, 'right')}", namespace="space")
        eventually(lambda: (good.put("key", b"value"), good.get("key"))[1] == b"value")
        good.close()


def _file(valkey: Server, password: str) -> Path:
    path = valkey.directory / f"{password}.txt"
    path.write_text(f"{password}\n")
    return path


def test_opening_a_cache_or_signal_without_a_server_is_no_error(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/nobody"
    open_signal(url, namespace="space").close()
    open_cache(url, namespace="space").close()


@pytest.mark.parametrize(
    "url",
    [
        "http://host", "redis://", "redis://host/x", "redis://host?foo=1", "unix://", "host:6379",
        "redis://host:0", "redis://host:99999", "redis://u:secret@host:x", "redis://[::1",
    ],
)  # fmt: skip
def test_an_invalid_valkey_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_valkey_url(url)
    assert caught.value.kind == "bad_url"
    assert "secret" not in str(caught.value)


def test_valkey_addresses_are_parsed_without_showing_the_password() -> None:
    address = parse_valkey_url("valkeys://user:s%40cret@[::1]:7000/3")
    assert (address.username, address.password, address.secure) == ("user", "s@cret", True)
    assert str(address) == "rediss://[::1]:7000/3"
    assert "s@cret" not in repr(address)
    assert str(parse_valkey_url("unix:///run/v%20k.sock?db=2")) == "unix:///run/v k.sock?db=2"
    with pytest.raises(Refused) as caught:
        parse_valkey_url("redis://host?password_file=/nowhere/at/all")
    assert caught.value.kind == "no_password"


def test_without_the_redis_package_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(Unsupported) as caught:
        client.load_redis()
    assert "pip install 'ortet[valkey]'" in str(caught.value)


def test_caches_of_a_process_share_a_link(valkey: Server) -> None:
    caches = [open_cache(valkey.url, namespace=f"space-{n}") for n in range(20)]
    for one in caches:
        one.put("key", b"value")
    eventually(lambda: _clients(valkey) <= 1)
    for one in caches[1:]:
        one.close()
    eventually(lambda: _clients(valkey) <= 1)
    caches[0].close()
    eventually(lambda: _clients(valkey) == 0)
    again = open_cache(valkey.url, namespace="space-0")
    eventually(lambda: again.take_token("n", rate=1, burst=99) == 0.0)
    again.close()

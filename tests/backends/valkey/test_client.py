"""Connections to a Valkey server: shared, refused, and in a child process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.fixtures.valkey import Server, connection_count, valkey_server
from tests.fixtures.waiting import WAIT, eventually

from ortet.backends.pubsub import PubSubSignal
from ortet.backends.valkey import client
from ortet.backends.valkey.address import parse_valkey_url
from ortet.backends.valkey.cache import ValkeyCache, open_cache
from ortet.backends.valkey.client import ValkeyClient
from ortet.backends.valkey.signal import open_signal
from ortet.errors import Refused, Unsupported

pytestmark = [pytest.mark.valkey, pytest.mark.usefixtures("unhurried")]


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
    eventually(lambda: connection_count(valkey) <= 1)
    for one in caches[1:]:
        one.close()
    eventually(lambda: connection_count(valkey) <= 1)
    caches[0].close()
    eventually(lambda: connection_count(valkey) == 0)
    again = open_cache(valkey.url, namespace="space-0")
    eventually(lambda: again.take_token("n", rate=1, burst=99) == 0.0)
    again.close()

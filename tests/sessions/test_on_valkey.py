"""A store whose signal and cache are on Valkey: what happens to that happens to no data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread

import pytest
from tests.fixtures.postgres import Shared, drop_schema, new_schema, shared
from tests.fixtures.valkey import Server
from tests.fixtures.valkey_hub import opened
from tests.fixtures.waiting import WAIT

from ortet.backends.valkey.address import parse_valkey_url
from ortet.backends.valkey.cache import ValkeyCache
from ortet.backends.valkey.client import ValkeyClient
from ortet.config.environment import open_hub
from ortet.config.settings import ServeSettings
from ortet.server.auth.tokens import Caller
from ortet.server.errors import TooManyRequests
from ortet.server.middleware.rate_limit import RateLimiter

pytestmark = pytest.mark.valkey


def test_working_memory_cached_by_one_hub_is_used_by_another(
    tmp_path: Path, valkey: Server
) -> None:
    with opened(tmp_path / "store", valkey) as one, opened(tmp_path / "store", valkey) as two:
        with one.session("s", goal="g") as session:
            session.say("user", "hello")
        made = one.get("s").memory.working()
        hits = _hits(valkey)
        assert two.get("s").memory.working() == made
        assert _hits(valkey) == hits + 1


def _hits(valkey: Server) -> int:
    told = valkey.ask("INFO", "stats").decode()
    return int(told.partition("keyspace_hits:")[2].split()[0])


def test_killed_or_flushed_valkey_loses_no_turn(tmp_path: Path, valkey: Server) -> None:
    """Two hubs alternate; each knows at once what the other stored."""
    said = []
    with opened(tmp_path / "store", valkey) as one, opened(tmp_path / "store", valkey) as two:
        for turn in range(12):
            if turn == 3:
                valkey.kill()
            elif turn == 6:
                valkey.start()
            elif turn == 9:
                valkey.ask("FLUSHALL")
            hub, other = (one, two) if turn % 2 else (two, one)
            with hub.session("s", goal="g") as session:
                session.say("user", f"turn {turn}")
            said.append(f"turn {turn}")
            for reader in (other, hub):
                assert [m.content for m in reader.get("s").messages()] == said
                assert reader.get("s").memory.working().messages[-1]["content"] == said[-1]


def test_erased_message_is_not_returned_from_an_unreachable_cache(
    tmp_path: Path, valkey: Server
) -> None:
    with opened(tmp_path / "store", valkey) as one, opened(tmp_path / "store", valkey) as two:
        with one.session("s") as session:
            event = session.say("user", "a secret thing")
        assert "secret" in str(two.get("s").memory.working())
        one.cache._client._retry_at = time.monotonic() + WAIT  # type: ignore[attr-defined]
        one.erase("s", seqs=[event.seq])
        for hub in (one, two):
            assert "secret" not in str(hub.get("s").memory.working())


def test_waiting_hub_is_woken_by_a_signal_and_by_a_killed_valkey(
    tmp_path: Path, valkey: Server
) -> None:
    with opened(tmp_path / "store", valkey) as one, opened(tmp_path / "store", valkey) as two:
        ends: list[Callable[[], None]] = [lambda: one.store.notify("topic"), valkey.kill]
        for end in ends:
            token, woken = two.signal.token("topic"), Event()

            def wait(token: int = token, woken: Event = woken) -> None:
                if two.signal.wait("topic", token, WAIT):
                    woken.set()

            thread = Thread(target=wait)
            thread.start()
            end()
            thread.join(WAIT)
            assert woken.is_set()


def test_servers_share_a_rate_limit_and_keep_their_own_without_valkey(valkey: Server) -> None:
    settings = ServeSettings(rate=0.001, burst=3)
    caches = [
        ValkeyCache(ValkeyClient(parse_valkey_url(valkey.url), answer_timeout=WAIT), "store")
        for _ in range(2)
    ]
    one, two = (RateLimiter(settings, cache) for cache in caches)
    caller = Caller(token="t", name="n")
    for limits in (one, two, one):
        limits.admit(caller)
    for limits in (one, two):
        with pytest.raises(TooManyRequests):
            limits.admit(caller)
    valkey.kill()
    two.admit(caller)  # of its own it has given two
    with pytest.raises(TooManyRequests):
        two.admit(caller)
    for cache in caches:
        cache.close()


def test_hosts_with_postgres_bucket_and_valkey_work_while_valkey_is_paused(
    postgres: Shared, tmp_path: Path, valkey: Server
) -> None:
    """PostgreSQL, a bucket and Valkey, of which the last one may stand still."""
    schema = new_schema()
    url = f"{shared().url()}&bucket=file://{tmp_path}/bucket&schema={schema}&signal={valkey.url}"
    hosts = [{**os.environ, "XDG_CACHE_HOME": str(tmp_path / name)} for name in ("a", "b", "c")]
    with ExitStack() as last:
        last.callback(drop_schema, shared().url(), schema)
        one, two = (last.enter_context(open_hub(url, environ=host)) for host in hosts[:2])
        with one.session("s", goal="g") as session:
            session.say("user", "hello")
            session.commit("turn")
        assert one.get("s").memory.working() == two.get("s").memory.working()
        token = two.signal.token("topic")
        one.store.notify("topic")
        assert two.signal.wait("topic", token, WAIT) is True
        valkey.pause()
        with two.session("s") as session:
            session.say("user", "again")
        three = last.enter_context(open_hub(url, environ=hosts[2]))
        for hub in (one, three):
            assert [m["content"] for m in hub.get("s").memory.working().messages] == [
                "hello",
                "again",
            ]
        with open_hub(tmp_path / "copy") as copy:
            assert copy.pull(three).objects > 0
            assert copy.push(one).objects == 0

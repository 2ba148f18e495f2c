"""Servers of several hosts on one store: turns, streams, connections, clocks, outages of Valkey
and of the database.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.fixtures.http_server import Client
from tests.fixtures.postgres import Server as Postgres
from tests.fixtures.s3 import ENVIRON
from tests.fixtures.valkey import valkey_server
from tests.fixtures.waiting import WAIT, eventually
from tests.server.event_streams import Stream, streaming
from tests.server.server_group import Farm, said, servers, settled

pytestmark = [pytest.mark.postgres, pytest.mark.valkey]

MINUTES = 600
_SKEWED = """import time

_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {seconds}
time.time_ns = lambda: _time_ns() + {seconds} * 10**9
"""


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    with servers(tmp_path, "--no-auth") as made:
        yield made


def say(client: Client, path: str, text: str) -> None:
    body = {"role": "user", "content": text}
    reply = settled(client, f"{path}/messages", body, f"{path} {text} {time.monotonic_ns()}")
    assert reply.status == 201, reply


def turn(client: Client, path: str, text: str) -> Any:
    body = {"messages": [{"role": "user", "content": text}]}
    reply = settled(client, f"{path}/turns", body, text)
    assert reply.status == 201, reply
    return reply.data


def test_turns_alternate_between_two_servers_and_retries_are_recorded_once(farm: Farm) -> None:
    one, two = farm.start("one").client(), farm.start("two").client()
    path = one.new("s")
    texts = [f"turn {number}" for number in range(6)]
    heads = []
    for number, text in enumerate(texts):
        done = turn((one, two)[number % 2], path, text)
        assert [each["content"] for each in done["context"]["messages"]] == texts[: number + 1]
        heads.append(done["head"]["oid"])
    assert len(set(heads)) == len(texts)
    again = [turn(client, path, texts[-1]) for client in (one, two)]
    assert [done["head"]["oid"] for done in again] == [heads[-1]] * 2
    assert said(one, path) == said(two, path) == texts
    farm.verify()


def heard(stream: Stream, count: int) -> list[str]:
    """The next so many messages."""
    return [one.data["data"]["content"] for one in stream.take(count)]


def test_events_written_at_one_server_are_streamed_by_the_other(farm: Farm) -> None:
    one, two = farm.start("one"), farm.start("two")
    path = one.client().new("s")
    feed = f"{path}/events/stream"
    with streaming(two.url, feed, kinds="message") as stream:
        for number in range(3):
            say(one.client(), path, f"first {number}")
            assert heard(stream, 1) == [f"first {number}"]
        last = stream.last
    for number in range(3):
        say((two, one)[number % 2].client(), path, f"unheard {number}")
    with streaming(one.url, feed, kinds="message", last=last) as stream:
        assert heard(stream, 3) == [f"unheard {number}" for number in range(3)]
        say(two.client(), path, "last")
        assert heard(stream, 1) == ["last"]


def test_open_sessions_share_the_database_connections_of_their_server(tmp_path: Path) -> None:
    with servers(tmp_path, "--no-auth", connections="6", application_name="forty") as farm:
        client = farm.start("one").client()

        def begin(number: int) -> str:
            path = client.new(f"s{number}")
            say(client, path, f"hello {number}")
            return path

        with ThreadPoolExecutor(8) as pool:
            paths = list(pool.map(begin, range(40)))

            def are_open() -> bool:
                metrics = client.ask("GET", "/metrics").body.decode().splitlines()
                if "ortet_rooms 40.0" in metrics:
                    return True
                list(pool.map(say, [client] * 40, paths, ["again"] * 40))
                return False

            eventually(are_open, 120)
        # one more listens; a connection that was closed stays for a moment
        eventually(lambda: _connections(farm, "forty") <= 6 + 1)


def _connections(farm: Farm, name: str) -> int:
    with psycopg.connect(farm.database) as connection:
        asked = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s"
        return len(connection.execute(asked, (name,)).fetchall())


def test_turns_continue_while_valkey_is_killed_and_restarted(tmp_path: Path, s3: str) -> None:
    bucket = f"s3://ortet/{uuid4().hex}?endpoint={s3}"
    with (
        valkey_server() as valkey,
        servers(tmp_path, "--no-auth", env=ENVIRON, bucket=bucket, signal=valkey.url) as farm,
    ):
        one, two = farm.start("one").client(), farm.start("two").client()
        path = one.new("s")
        texts = [f"turn {number}" for number in range(6)]
        for number, text in enumerate(texts):
            if number == 3:
                valkey.kill()
            turn((one, two)[number % 2], path, text)
        valkey.start()
        texts.append("after")
        turn(two, path, "after")
        assert said(one, path) == said(two, path) == texts
        farm.kill("one")
        farm.kill("two")  # which hold the key of nobody
        assert len(said(farm.start("three").client(), path)) == len(texts)


def _skewed(place: Path, seconds: int) -> str:
    """A directory for PYTHONPATH: a host whose clock is wrong."""
    place.mkdir()
    (place / "sitecustomize.py").write_text(_SKEWED.format(seconds=seconds))
    return str(place)


@pytest.mark.slow
def test_lease_holds_between_servers_whose_clocks_differ_by_minutes(
    farm: Farm, tmp_path: Path
) -> None:
    early = farm.start("early", PYTHONPATH=_skewed(tmp_path / "behind", -MINUTES))
    late = farm.start("late", PYTHONPATH=_skewed(tmp_path / "before", MINUTES))
    path = early.client().new("s")
    texts = [f"turn {number}" for number in range(4)]
    for number, text in enumerate(texts):
        turn((early, late)[number % 2].client(), path, text)
    while True:
        turn(early.client(), path, "held")
        texts.append("held")
        early.process.send_signal(signal.SIGSTOP)
        if f"session:{path.rpartition('/')[2]}" in farm.prolong(early):
            break
        early.process.send_signal(signal.SIGCONT)  # it let go just before
    try:  # its lease counts, whatever another's clock says
        body = {"role": "user", "content": "stolen"}
        reply = late.client().ask("POST", f"{path}/messages", body)
        assert (reply.status, reply.kind) == (403, "lease_held"), reply
        farm.hurry(early)
        turn(late.client(), path, "taken over")
    finally:
        early.process.send_signal(signal.SIGCONT)
    turn(early.client(), path, "back")
    assert said(late.client(), path) == [*texts, "taken over", "back"]
    farm.verify()


def test_writes_and_streams_continue_after_a_database_restart(tmp_path: Path) -> None:
    postgres = Postgres()
    try:
        with servers(tmp_path, "--no-auth", database=postgres.url()) as farm:
            one, two = farm.start("one"), farm.start("two")
            paths = [one.client().new("a"), two.client().new("b")]
            feed = f"{paths[0]}/events/stream"
            with streaming(two.url, feed, kinds="message") as stream:
                say(one.client(), paths[0], "before")
                assert heard(stream, 1) == ["before"]
                postgres.stop()
                with ThreadPoolExecutor(2) as pool:
                    asked = [
                        pool.submit(_said_at_last, server.client(), path, "meanwhile")
                        for server, path in zip((one, two), paths, strict=True)
                    ]
                    postgres.start()
                    for each in asked:
                        each.result(2 * WAIT)
                assert heard(stream, 1) == ["meanwhile"]
            say(two.client(), paths[0], "after")
            assert said(one.client(), paths[0]) == ["before", "meanwhile", "after"]
            assert said(one.client(), paths[1]) == ["meanwhile"]
            farm.verify()
    finally:
        postgres.end()


def _said_at_last(client: Client, path: str, text: str) -> None:
    """Whoever is told that the database is gone asks again."""
    body = {"role": "user", "content": text}

    def is_said() -> bool:
        reply = settled(client, f"{path}/messages", body, path + text)
        assert reply.status in (201, 503), reply
        return reply.status == 201

    eventually(is_said)

"""Servers of several hosts on one store in PostgreSQL, behind a plain TCP proxy.

Any server takes any turn of a session. A killed server loses and doubles no answered write.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from tests.fixtures.http_server import Client
from tests.fixtures.waiting import WAIT, eventually
from tests.server.server_group import TENANT, Farm, said, servers, settled

pytestmark = pytest.mark.postgres

SOAK = int(os.environ.get("ORTET_SOAK", "1"))
LEASE = 30.0
"""Seconds of a lease, after which another host takes over."""


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    with servers(tmp_path, "--no-auth", "--limit", f"patience={WAIT / 2}") as made:
        yield made


def test_messages_and_commits_alternate_between_two_servers(farm: Farm) -> None:
    one, two = farm.start("one").client(), farm.start("two").client()
    path = one.new("s")
    for number in range(3):
        for client, name in ((one, "one"), (two, "two")):
            client.post(f"{path}/messages", {"role": "user", "content": f"{name} {number}"})
    made = two.post(f"{path}/commits", {"message": "by two"})
    one.post(f"{path}/messages", {"role": "user", "content": "after"})
    assert one.get(f"{path}/commits")["items"][0]["oid"] == made["oid"]
    wanted = [f"{name} {number}" for number in range(3) for name in ("one", "two")]
    assert said(two, path) == [*wanted, "after"]
    farm.verify()


def test_request_with_an_idempotency_key_is_done_once_by_any_server(farm: Farm) -> None:
    one, two = farm.start("one").client(), farm.start("two").client()
    path = one.new("s")
    body = {"role": "user", "content": "once"}
    first, second = (settled(client, f"{path}/messages", body, "k") for client in (one, two))
    assert (first.status, first.body) == (second.status, second.body)
    assert said(one, path) == ["once"]


def test_tokens_and_tenants_are_valid_at_every_server(tmp_path: Path) -> None:
    with servers(tmp_path) as farm:
        one, two = farm.start("one"), farm.start("two")
        ours, theirs = one.token("ours"), one.token("theirs", "--tenant", TENANT)
        assert two.client().ask("GET", "/sessions").status == 401
        path = two.client(theirs).new("s")
        two.client(theirs).post(f"{path}/messages", {"role": "user", "content": "hidden"})
        assert said(one.client(theirs), path) == ["hidden"]
        for server in (one, two):
            assert server.client(ours).get("/sessions")["items"] == []
            assert server.client(ours).ask("GET", path).status == 404


@pytest.mark.soak
def test_answered_writes_of_several_servers_survive_kill_9_exactly_once(farm: Farm) -> None:
    """Half a minute of kills for each of ORTET_SOAK but the first, which is one kill."""
    hosts = ("one", "two") if SOAK == 1 else ("one", "two", "three")
    for host in hosts:
        farm.start(host)
    client, over = farm.client(), threading.Event()
    paths = [client.new(f"s{number}") for number in range(len(hosts))]
    written = [_Written() for _ in paths]
    with ThreadPoolExecutor(len(paths)) as pool:
        writers = [
            pool.submit(done.write, client, path, f"w{number}", over)
            for number, (path, done) in enumerate(zip(paths, written, strict=True))
        ]
        end = time.monotonic() + 30 * (SOAK - 1)
        try:
            _kill_one(farm, random.choice(hosts), written, writers)
            while time.monotonic() < end and not any(one.done() for one in writers):
                _kill_one(farm, random.choice(hosts), written, writers)
        finally:
            over.set()
        for writer in writers:
            writer.result(2 * WAIT)
    for path, done in zip(paths, written, strict=True):
        _check(client, path, done)
    farm.verify()


def _kill_one(farm: Farm, host: str, written: list[_Written], writers: list[Future[None]]) -> None:
    """And start it again, each in the middle of writing."""

    def some_more() -> None:
        enough = sum(len(done.answered) for done in written) + 5
        eventually(
            lambda: (
                sum(len(done.answered) for done in written) >= enough
                or any(one.done() for one in writers)
            )
        )

    some_more()
    victim = farm.servers[host]
    farm.kill(host)
    if SOAK == 1:
        farm.hurry(victim)
    else:  # so that others take over, or itself does
        time.sleep(random.choice([0, 0.3, 1.2]) * LEASE)
    some_more()
    farm.start(host)


def _check(client: Client, path: str, done: _Written) -> None:
    found = Counter(said(client, path))
    assert max(found.values()) == 1
    assert set(found) - done.unsettled == done.answered
    commits = Counter(one["message"] for one in client.get(f"{path}/commits", limit=1000)["items"])
    assert all(commits[key] == 1 for key in done.commits)
    assert all(commits[key] <= 1 for key in done.unsettled)


class _Written:
    """What was answered, and of what nobody knows."""

    def __init__(self) -> None:
        self.answered: set[str] = set()
        self.unsettled: set[str] = set()
        self.commits: set[str] = set()

    def write(self, client: Client, path: str, name: str, over: threading.Event) -> None:
        for number in count():
            if over.is_set():
                return
            key = f"{name}-{number}"
            is_commit = number % 10 == 9
            verb = "commits" if is_commit else "messages"
            body = {"message": key} if is_commit else {"role": "user", "content": key}
            reply = settled(client, f"{path}/{verb}", body, key)
            if reply.status != 201:
                assert reply.kind == "unsettled_request", reply
                self.unsettled.add(key)
            elif is_commit:
                self.commits.add(key)
            else:
                self.answered.add(key)

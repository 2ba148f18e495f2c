"""The database dies in the middle of what hosts write, and its standby takes its place."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.fixtures import forked
from tests.fixtures.postgres import Server
from tests.fixtures.stores import host_environ
from tests.fixtures.waiting import WAIT, eventually

from ortet.config.environment import open_hub

pytestmark = pytest.mark.postgres

_WRITER = """
import sys, ortet
url, name = sys.argv[1:]
turn = 0
with ortet.open(url) as hub, hub.session(name) as s:
    while True:
        s.say("user", str(turn))
        if turn % 5 == 0:
            s.commit(str(turn))
        print(turn, flush=True)  # it counts from here on
        turn += 1
        if not sys.stdin.readline().strip():
            break
"""


class Writer:
    """A host of its own; it says on and on, a few messages ahead of who reads what it says."""

    def __init__(self, url: str, name: str, tmp_path: Path) -> None:
        self.name, self.done = name, -1
        self._process = forked.Popen(
            [sys.executable, "-c", _WRITER, url, name],
            env=host_environ(tmp_path, name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._say("on\n" * 3)

    def _say(self, words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(words)
        self._process.stdin.flush()

    def go_on(self, turns: int) -> None:
        assert self._process.stdout is not None
        for _ in range(turns):
            self.done = json.loads(self._process.stdout.readline())
            self._say("on\n")

    def end(self) -> None:
        out, _ = self._process.communicate("\n", timeout=WAIT)
        assert self._process.returncode == 0
        self.done = json.loads(out.splitlines()[-1]) if out else self.done

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """What the first has committed, the second has: only then it is acknowledged."""
    primary = Server()
    try:
        standby = Server(primary=primary)
        try:
            with psycopg.connect(primary.url(), autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                connection.execute("SELECT pg_reload_conf()")
                standing = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
                eventually(lambda: connection.execute(standing).fetchall())
            yield primary, standby
        finally:
            standby.end()
    finally:
        primary.end()


def test_nothing_acknowledged_is_lost_and_nothing_is_said_twice(
    pair: tuple[Server, Server], tmp_path: Path
) -> None:
    primary, standby = pair
    hosts = f"{primary.root},{standby.root}"
    url = f"postgresql://postgres@/postgres?host={hosts}&target_session_attrs=read-write"
    url += f"&bucket=file://{tmp_path}/bucket"
    with open_hub(url, environ=host_environ(tmp_path, "first")):
        pass
    writers = [Writer(url, name, tmp_path) for name in ("a", "b")]
    try:
        for writer in writers:
            writer.go_on(20)
        primary.stop(signal.SIGKILL)
        with psycopg.connect(standby.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")
        for writer in writers:
            writer.go_on(20)
            writer.end()
    finally:
        for writer in writers:
            writer.kill()
    with open_hub(url, environ=host_environ(tmp_path, "fresh")) as hub:
        for writer in writers:
            with hub.session(writer.name) as s:
                said = [str(turn) for turn in range(writer.done + 1)]
                assert [m.content for m in s.messages()] == said
        assert not hub.verify().problems
        assert hub.catalog.check() == []

"""A server is killed with -9 while eight clients write: what it has answered is there, once.

What was on its way is asked again, with its key, of the next server: it is done once, or whoever
asks is told that nobody knows.
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import pytest
from tests.fixtures.http_server import Client, Serve, Server
from tests.fixtures.waiting import eventually

import ortet

SOAK = int(os.environ.get("ORTET_SOAK", "1"))
KILLS = 2 * SOAK
WRITERS = 8
ENOUGH = 120
"""Answers after which a server is killed: by then all writers are in the middle of something."""


class Write(NamedTuple):
    """One that was asked for; its key is also its text."""

    session: str
    verb: str
    key: str

    def ask(self, client: Client) -> Any:
        path, body = f"/sessions/{self.session}/{self.verb}", BODIES[self.verb](self.key)
        return client.ask("POST", path, body, headers={"Idempotency-Key": self.key})


BODIES: dict[str, Any] = {
    "messages": lambda key: {"role": "user", "content": key},
    "commits": lambda key: {"message": key},
    "forks": lambda _: {"machine": False},
}
ROUND = ("messages", "messages", "commits", "messages", "messages", "forks")


class Ledger:
    """What was answered, and what was on its way when the server died."""

    def __init__(self) -> None:
        self.done: list[tuple[Write, Any]] = []
        self.lost: list[Write] = []
        self._lock = Lock()

    def write(self, client: Client, writer: int, session: str, kill: int) -> None:
        """Until nobody answers any more."""
        for number in count():
            one = Write(session, ROUND[number % len(ROUND)], f"{kill}-{writer}-{number}")
            try:
                reply = one.ask(client)
            except (OSError, HTTPException):
                with self._lock:
                    self.lost.append(one)
                return
            assert reply.status == 201, (one, reply)
            with self._lock:
                self.done.append((one, reply.data))


@pytest.mark.soak
def test_answered_writes_survive_kill_9_exactly_once(serve: Serve, tmp_path: Path) -> None:
    def start() -> Server:
        return serve("--no-auth", "--limit", "patience=60", home=tmp_path / "served")

    ledger, unsettled = Ledger(), set[str]()
    server = start()
    sessions = [server.client().new(f"s{number}").rpartition("/")[2] for number in range(4)]
    for kill in range(KILLS):
        _write_until_killed(server, ledger, sessions, kill)
        with ortet.open(server.store) as hub:
            hub.verify()
        server = start()
        unsettled |= _ask_again(server, ledger)
        _check(server, ledger, unsettled, sessions)
    assert server.stop() == 0
    with ortet.open(server.store) as hub:
        hub.verify()


def _write_until_killed(server: Server, ledger: Ledger, sessions: list[str], kill: int) -> None:
    enough = len(ledger.done) + ENOUGH
    with ThreadPoolExecutor(WRITERS) as pool:
        writers = [
            pool.submit(ledger.write, server.client(), n, sessions[n % len(sessions)], kill)
            for n in range(WRITERS)
        ]
        try:
            eventually(lambda: len(ledger.done) >= enough or any(one.done() for one in writers))
        finally:
            server.kill()
    for writer in writers:
        writer.result()


def _ask_again(server: Server, ledger: Ledger) -> set[str]:
    """The keys of which nobody knows. Asked twice, the answer is the same."""
    unknown = set()
    for one in ledger.lost:
        first, second = one.ask(server.client()), one.ask(server.client())
        assert (first.status, first.body) == (second.status, second.body)
        if first.status == 201:
            ledger.done.append((one, first.data))
        else:
            assert (first.status, first.kind) == (409, "unsettled_request"), first
            unknown.add(one.key)
    ledger.lost.clear()
    return unknown


def _check(server: Server, ledger: Ledger, unsettled: set[str], sessions: list[str]) -> None:
    client = server.client()
    for session in sessions:
        mine = [(one, told) for one, told in ledger.done if one.session == session]
        said = Counter(one["content"] for one in _all(client, f"/sessions/{session}/messages"))
        wanted = {one.key for one, _ in mine if one.verb == "messages"}
        assert set(said) - unsettled == wanted
        assert max(said.values(), default=1) == 1
        commits = _all(client, f"/sessions/{session}/commits")
        assert {told["oid"] for one, told in mine if one.verb == "commits"} <= {
            one["oid"] for one in commits
        }
        named = Counter(one["message"] for one in commits if "-" in one["message"])
        assert max(named.values(), default=1) == 1
        forks = {one["id"] for one in _all(client, "/sessions", parent=session)}
        known = {told["forks"][0]["id"] for one, told in mine if one.verb == "forks"}
        assert known <= forks
        assert len(forks - known) <= len(unsettled)


def _all(client: Client, path: str, **query: Any) -> list[Any]:
    items: list[Any] = []
    while True:
        page = client.get(path, limit=1000, **query)
        items += page["items"]
        if page["next"] is None:
            return items
        query["after"] = page["next"]

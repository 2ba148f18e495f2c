"""A store that another process keeps locked: writes fail soon with 503, and nothing is lost."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.fixtures.http_server import Client, Reply, Serve
from tests.fixtures.locking import locked
from tests.fixtures.waiting import eventually

import ortet
from ortet._util.lock_timeout import current_lock_timeout, lock_timeout
from ortet.backends.sqlite.catalog import SqliteCatalog
from ortet.errors import Conflict, Unavailable
from ortet.server.middleware.idempotency import RecordedResponse, run_idempotent


@pytest.fixture
def here(serve: Serve) -> tuple[Client, Path]:
    server = serve("--no-auth", "--limit", "patience=0.5")
    return server.client(), server.store / "catalog.db"


@pytest.mark.slow
def test_write_to_a_locked_store_is_503_and_reads_succeed(here: tuple[Client, Path]) -> None:
    client, catalog = here
    path = client.new("s")
    cold = client.new("cold")
    client.post(f"{path}/messages", {"role": "user", "content": "before"})
    said = {"role": "user", "content": "after"}
    with locked(catalog):
        for _ in range(2):  # also who comes again too soon
            reply = client.ask("POST", f"{path}/messages", said)
            assert (reply.status, reply.kind) == (503, "busy")
        for other in (f"{path}/commits", f"{path}/forks", "/sessions", f"{cold}/commits"):
            reply = client.ask("POST", other, {"name": "x"})
            assert reply.status in (422, 503), (other, reply)
        read = client.ask("GET", f"{path}/messages")  # readers wait for nobody
        assert [one["content"] for one in read.data["items"]] == ["before"]
    assert client.ask("POST", f"{path}/messages", said).status == 201  # at once: it is ours still
    found = client.get(f"{path}/messages")["items"]
    assert [one["content"] for one in found] == ["before", "after"]


def test_idempotency_key_holds_after_a_503(here: tuple[Client, Path]) -> None:
    client, catalog = here
    path = client.new("s")
    client.post(f"{path}/messages", {"role": "user", "content": "before"})

    def say(key: str) -> Reply:
        said, headers = {"role": "user", "content": key}, {"Idempotency-Key": key}
        return client.ask("POST", f"{path}/messages", said, headers=headers)

    with locked(catalog):
        assert say("one").status == 503

    def settled() -> Reply | None:
        reply = say("one")
        if reply.status == 409:
            assert reply.kind == "in_progress"
            return None
        return reply

    reply = eventually(settled)
    assert reply.status == 201
    assert say("one").body == reply.body
    found = client.get(f"{path}/messages")["items"]
    assert [one["content"] for one in found] == ["before", "one"]


def test_answer_that_could_not_be_stored_is_stored_after_the_lock(tmp_path: Path) -> None:
    with ortet.open(tmp_path / "store") as hub, ExitStack() as lock:

        def do() -> RecordedResponse:
            lock.enter_context(locked(tmp_path / "store" / "catalog.db"))
            return RecordedResponse(200, b"done")

        def again() -> RecordedResponse:
            raise AssertionError("it was done twice")

        with lock_timeout(0.2):
            answer, before = run_idempotent(hub, "key", "token", b"request", do)
        assert (answer.body, before) == (b"done", False)
        with pytest.raises(Conflict) as caught:
            run_idempotent(hub, "key", "token", b"request", again)
        assert caught.value.kind == "in_progress"
        lock.close()

        def stored() -> bytes | None:
            try:
                answer, before = run_idempotent(hub, "key", "token", b"request", again)
            except Conflict:
                return None
            assert before
            return answer.body

        assert eventually(stored) == b"done"


def test_lock_timeout_is_spent_once_within_its_block(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    with locked(tmp_path / "catalog.db"), lock_timeout(0.2):
        for _ in range(50):
            with pytest.raises(Unavailable, match="try again"):
                catalog.put_row("kind", "key", b"value")
            left = current_lock_timeout()
            assert left is not None and left.seconds == 0
        assert catalog.row("kind", "key") is None
    with lock_timeout(0.2):
        catalog.put_row("kind", "key", b"value")
    catalog.put_row("kind", "other", b"value")
    catalog.close()

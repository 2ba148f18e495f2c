"""A PostgreSQL that stands still, and one that is only slow."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.fixtures.postgres import Server
from tests.fixtures.waiting import WAIT

from ortet._util.lock_timeout import lock_timeout
from ortet.backends.postgres.catalog import PostgresCatalog
from ortet.backends.postgres.notify import postgres_signal
from ortet.errors import Unavailable

pytestmark = pytest.mark.postgres


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.end()


def opened(server: Server, connect: int = 5) -> PostgresCatalog:
    return PostgresCatalog(f"{server.url()}&connect_timeout={connect}")


@pytest.mark.slow
def test_a_paused_server_is_reported_as_gone(server: Server) -> None:
    told: list[str] = []

    def write(number: int) -> None:
        try:
            with lock_timeout(0.5):
                catalog.put_row("kind", f"{number}", b"")
        except Unavailable as error:
            told.append(error.kind)

    with closing(opened(server)) as catalog:
        catalog.put_row("kind", "key", b"1")
        signal = postgres_signal(catalog.database, "space")
        signal.token("topic")
        # daemons: where nobody gives up, they would wait for ever
        threads = [threading.Thread(target=write, args=(n,), daemon=True) for n in range(4)]
        server.pause()
        try:
            for thread in threads:
                thread.start()
            with pytest.raises(Unavailable) as caught, lock_timeout(0.5):
                catalog.row("kind", "key")
            for thread in threads:
                thread.join(WAIT)
        finally:
            server.resume()
        assert caught.value.kind == "database_gone"
        assert told == ["database_gone"] * 4
        assert catalog.put_row("kind", "key", b"2").version == 2
        signal.close()


def test_a_server_that_goes_on_in_time_is_waited_for(server: Server) -> None:
    with closing(opened(server)) as catalog:
        catalog.put_row("kind", "key", b"1")
        server.pause()
        later = threading.Timer(1.0, server.resume)
        later.start()
        try:
            assert catalog.put_row("kind", "key", b"2", expect=1).version == 2
        finally:
            later.join()


def test_a_statement_that_takes_longer_is_waited_for(server: Server) -> None:
    with (
        closing(opened(server, connect=60)) as catalog,
        catalog.client.read_transaction() as connection,
        lock_timeout(0.1),
    ):
        assert connection.execute("SELECT 1 FROM pg_sleep(1)").fetchall() == [(1,)]

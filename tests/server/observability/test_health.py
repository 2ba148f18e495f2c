"""Readiness of a server whose real database or bucket is stopped, slow or newer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import apsw
import psycopg
import pytest
from tests.fixtures.http_server import Client, Reply, Serve, Server
from tests.fixtures.postgres import Server as Postgres
from tests.fixtures.s3 import ENVIRON, make_bucket, s3_server
from tests.fixtures.waiting import WAIT, aeventually, eventually

from ortet.server.observability import health
from ortet.server.observability.health import HealthCheck

ASKING = 16


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    try:
        yield server
    finally:
        server.end()


def asked(client: Client) -> list[Reply]:
    """By many at once, as balancers do that do not wait for one another."""
    with ThreadPoolExecutor(ASKING) as pool:
        return list(pool.map(lambda _: client.ask("GET", "/readyz"), range(ASKING)))


def threads(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/task"))


def wait_until_ready(client: Client) -> None:
    eventually(lambda: client.ask("GET", "/readyz").status == 200)


def names(client: Client) -> list[str]:
    """Parts that are not well."""
    reply = client.ask("GET", "/readyz")
    if reply.status == 200:
        return list(reply.data.get("not_well", []))
    return list(reply.data["details"]["parts"])


def not_well(server: Server, part: str) -> list[Reply]:
    """All are told so, and one thread waits for it; what they are told."""
    client, before = server.client(), threads(server)
    eventually(lambda: part in names(client))
    replies = [*asked(client), *asked(client)]
    assert threads(server) < before + ASKING / 2
    return replies


def not_ready(server: Server, part: str) -> list[str]:
    replies = not_well(server, part)
    for reply in replies:
        assert reply.status == 503
        assert reply.kind == "not_ready"
        assert part in reply.data["details"]["parts"]
        assert f"its {part} " in reply.data["message"]
    return [reply.data["message"] for reply in replies]


@pytest.mark.slow
def test_server_is_not_ready_while_its_database_is_paused_or_stopped(
    serve: Serve, postgres: Postgres, tmp_path: Path
) -> None:
    server = serve("--no-auth", ORTET_URL=f"{postgres.url()}&bucket=file://{tmp_path}/bucket")
    client = server.client()
    wait_until_ready(client)
    postgres.pause()
    try:
        # they did not wait until the driver has given it up
        assert any("has not answered" in told for told in not_ready(server, "database"))
        assert client.ask("GET", "/healthz").status == 200
    finally:
        postgres.resume()
    wait_until_ready(client)
    postgres.stop()
    not_ready(server, "database")
    postgres.start()
    wait_until_ready(client)
    assert server.stop() == 0


@pytest.mark.slow
def test_readiness_reports_a_bucket_that_does_not_answer(
    serve: Serve, postgres: Postgres, tmp_path: Path
) -> None:
    place = tmp_path / "s3"
    place.mkdir()
    with s3_server(place) as address:
        make_bucket(address, "ortet")
        bucket = quote(f"s3://ortet/x?endpoint={address}", safe="")
        server = serve("--no-auth", ORTET_URL=f"{postgres.url()}&bucket={bucket}", **ENVIRON)
        client = server.client()
        wait_until_ready(client)
        weed = int((place / "pid").read_text())
        os.kill(weed, signal.SIGSTOP)
        try:
            # journals go on without it; where this host stood still, the database is late, too
            eventually(lambda: _all_but_the_bucket(not_well(server, "bucket")))
        finally:
            os.kill(weed, signal.SIGCONT)
        eventually(lambda: not names(client))
        os.kill(weed, signal.SIGSTOP)
        postgres.pause()
        try:
            eventually(lambda: {"database", "bucket"} <= {*names(client)})
        finally:
            postgres.resume()
            os.kill(weed, signal.SIGCONT)
        wait_until_ready(client)


def _all_but_the_bucket(replies: list[Reply]) -> bool:
    said = {"ready": True, "not_well": ["bucket"]}
    return all((reply.status, reply.data) == (200, said) for reply in replies)


@pytest.mark.slow
def test_server_stops_while_its_database_is_paused(
    serve: Serve, postgres: Postgres, tmp_path: Path
) -> None:
    server = serve("--no-auth", ORTET_URL=f"{postgres.url()}&bucket=file://{tmp_path}/bucket")
    wait_until_ready(server.client())
    postgres.pause()
    try:
        not_ready(server, "database")
        assert server.stop() == 0
    finally:
        postgres.resume()


def test_server_is_not_ready_if_a_newer_release_upgraded_the_database(
    serve: Serve, postgres: Postgres, tmp_path: Path
) -> None:
    server = serve("--no-auth", ORTET_URL=f"{postgres.url()}&bucket=file://{tmp_path}/bucket")
    wait_until_ready(server.client())
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("UPDATE ortet.ortet_format SET version = version + 1")
        assert any("must be upgraded" in told for told in not_ready(server, "database"))
        assert server.client().ask("GET", "/healthz").status == 200
        connection.execute("UPDATE ortet.ortet_format SET version = version - 1")
    wait_until_ready(server.client())


def test_server_is_not_ready_if_a_newer_release_upgraded_the_store(serve: Serve) -> None:
    server = serve("--no-auth")
    wait_until_ready(server.client())
    connection = apsw.Connection(str(server.store / "catalog.db"))
    try:
        connection.set_busy_timeout(60_000)
        format_ = int(connection.execute("PRAGMA user_version").get)
        connection.execute(f"PRAGMA user_version = {format_ + 1}")
    finally:
        connection.close()
    assert any("must be upgraded" in told for told in not_ready(server, "store"))


def test_probes_are_logged_only_at_debug_level(serve: Serve, tmp_path: Path) -> None:
    quiet = serve("--no-auth")
    loud = serve("--no-auth", "--limit", "debug=true", home=tmp_path / "loud")
    for server in (quiet, loud):
        for path in ("/healthz", "/readyz", "/sessions"):
            assert server.client().ask("GET", path).status == 200
        assert server.stop() == 0  # all is written by then
    assert _logged(quiet) == [("info", "/sessions")]
    assert _logged(loud) == [("debug", "/healthz"), ("debug", "/readyz"), ("info", "/sessions")]


def _logged(server: Server) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    return [(line["level"], line["route"]) for line in lines if line["message"] == "request"]


class Stuck:
    """Looks that wait until they may go on, and then fail or not."""

    def __init__(self) -> None:
        self.begun = 0
        self.there = threading.Event()
        self.go = threading.Event()
        self.error: Exception | None = None

    def __call__(self) -> None:
        self.begun += 1
        self.there.set()
        self.go.wait()
        if self.error is not None:
            raise self.error


def test_concurrent_readiness_probes_share_one_check(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look = Stuck()
    part = HealthCheck("bucket", look)

    async def ask() -> None:
        monkeypatch.setattr(health, "CHECK_TIMEOUT_SECONDS", 0.1)
        told = await asyncio.gather(*(part.problem() for _ in range(5)))
        assert {words.partition(" for ")[0] for words in told} == {"its bucket has not answered"}
        assert "has not answered" in await part.problem()
        assert await asyncio.to_thread(look.there.wait, WAIT)
        assert look.begun == 1
        monkeypatch.setattr(health, "CHECK_TIMEOUT_SECONDS", WAIT)
        look.go.set()
        assert await part.problem() == ""  # of the look that was waited for in vain
        assert look.begun == 1
        look.error = OSError("on host 10.0.0.7")
        wrong = await aeventually(part.problem)
        assert wrong == await part.problem() == "its bucket cannot be used"
        assert look.begun == 3  # nobody is told of a failure that was before
        look.error = None
        assert await part.problem() == ""

    asyncio.run(ask())
    assert caplog.text.count("OSError: on host 10.0.0.7") == 1

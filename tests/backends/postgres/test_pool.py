"""Connections to PostgreSQL that all of a process share: few, and none of them for ever."""

from __future__ import annotations

import os
import select
import sys
import threading
from contextlib import closing

import psycopg
import pytest
from tests.fixtures import forked
from tests.fixtures.postgres import drop_schema, shared
from tests.fixtures.waiting import WAIT, eventually

from ortet._util.lock_timeout import lock_timeout
from ortet.backends.postgres import pool, stall_detection
from ortet.backends.postgres.catalog import PostgresCatalog
from ortet.errors import Corrupt, Invalid, Unavailable
from ortet.testing.processes import run_in_threads


def opened(schema: str, *, create: bool = True, connections: int = 3) -> PostgresCatalog:
    url = f"{shared().url()}&application_name={schema}"
    return PostgresCatalog(url, schema=schema, create=create, connections=connections)


def connected(schema: str) -> int:
    with psycopg.connect(shared().url()) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (schema,)
        ).fetchone()
    assert found is not None
    return int(found[0])


def test_many_catalogs_share_few_connections(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # on a slow host who waits would ask why, each time by one more
    monkeypatch.setattr(pool, "_DIAGNOSE_AFTER_SECONDS", WAIT)
    monkeypatch.setattr(stall_detection, "_PROBE_AFTER_SECONDS", WAIT)
    catalogs = [opened(schema) for _ in range(40)]
    eventually(lambda: connected(schema) == 1)  # that of who opened it first is gone
    most = []

    def write(number: int) -> None:
        for turn in range(5):
            catalogs[number].put_row("kind", f"{number}-{turn}", b"")
        most.append(connected(schema))

    run_in_threads(write, [(number,) for number in range(40)])
    assert max(most) <= 3
    assert len(catalogs[0].rows("kind")) == 200
    for catalog in catalogs[1:]:
        catalog.close()
    with pytest.raises(Invalid) as caught:
        catalogs[1].rows("kind")
    assert caught.value.kind == "closed"
    catalogs[1].close()
    assert len(catalogs[0].rows("kind")) == 200
    catalogs[0].close()
    eventually(lambda: connected(schema) == 0)


def test_every_waiter_for_a_connection_gets_a_busy_error(schema: str) -> None:
    catalogs = [opened(schema, connections=2) for _ in range(10)]
    catalogs[0].put_row("kind", "key", b"")
    refused = []

    def look(number: int) -> None:
        with pytest.raises(Unavailable) as caught, lock_timeout(0.1):
            catalogs[number].head("h")
        refused.append(caught.value.kind)

    with psycopg.connect(shared().url(), options=f"-csearch_path={schema}") as other:
        other.execute("LOCK TABLE records")
        writers = [
            threading.Thread(target=catalogs[n].put_row, args=("kind", "key", b"")) for n in (0, 1)
        ]
        for writer in writers:
            writer.start()
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'records'::regclass"

        def are_blocked() -> bool:
            assert all(writer.is_alive() for writer in writers)
            return len(other.execute(waiting).fetchall()) >= 2

        eventually(are_blocked)
        run_in_threads(look, [(number,) for number in range(2, 10)])
        eventually(lambda: connected(schema) == 2)  # who asked why needed one more
    assert refused == ["busy"] * 8
    for writer in writers:
        writer.join(WAIT)
    assert catalogs[9].head("h") is None
    for catalog in catalogs:
        catalog.close()


def test_a_child_makes_its_own_and_leaves_those_of_its_parent(schema: str) -> None:
    first, second = opened(schema), opened(schema)
    first.put_row("kind", "before", b"")
    child = os.fork()
    if not child:
        try:
            second.put_row("kind", "child", b"")
            third = opened(schema, create=False)
            third.put_row("kind", "opened there", b"")
            for catalog in (first, second, third):
                catalog.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    first.put_row("kind", "after", b"")
    assert {row.key for row in second.rows("kind")} == {"before", "child", "opened there", "after"}
    first.close()
    second.close()
    eventually(lambda: connected(schema) == 0)


def test_opening_a_dropped_schema_is_refused_though_others_have_it_open(schema: str) -> None:
    first = opened(schema)
    first.put_row("kind", "key", b"")
    drop_schema(shared().url(), schema)
    with pytest.raises(Corrupt) as caught:
        opened(schema, create=False)
    assert caught.value.kind == "no_catalog"
    again = opened(schema)
    assert again.rows("kind") == []
    first.close()
    again.close()


@pytest.mark.parametrize(
    ("setting", "kind"),
    [("statement_timeout", "busy"), ("idle_in_transaction_session_timeout", "database_gone")],
)
def test_a_server_timeout_is_reported_as_busy_or_gone(schema: str, setting: str, kind: str) -> None:
    with closing(opened(schema)) as catalog:
        limit = f"SET LOCAL {setting} = 50"
        with (
            pytest.raises(Unavailable) as caught,
            catalog.client.read_transaction(limit) as connection,
        ):
            if kind == "busy":
                connection.execute("SELECT pg_sleep(60)")
            assert select.select([connection], [], [], WAIT)[0]  # the server has closed it
            connection.execute("SELECT 1")
        assert caught.value.kind == kind
        assert catalog.rows("kind") == []


LOST = """
import sys
import psycopg
from ortet.backends.postgres.catalog import PostgresCatalog
catalog = PostgresCatalog(sys.argv[1], schema=sys.argv[2])
for _ in range(3):
    catalog.put_row("kind", "key", b"")
    with psycopg.connect(sys.argv[1], autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
            "WHERE application_name = %s AND pid <> pg_backend_pid()", (sys.argv[2],))
print(catalog.put_row("kind", "key", b"").version)
catalog.close()
"""


def test_a_lost_and_replaced_connection_prints_no_warning(schema: str) -> None:
    url = f"{shared().url()}&application_name={schema}"
    done = forked.run(
        [sys.executable, "-c", LOST, url, schema], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("4\n", "")

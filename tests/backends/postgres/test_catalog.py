"""What the catalog in PostgreSQL does beyond the contract: many at once, faults, formats, room."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from tests.fixtures.cut_proxy import Cut
from tests.fixtures.postgres import Server, Shared, shared
from tests.fixtures.waiting import WAIT, eventually

from ortet._util.lock_timeout import lock_timeout
from ortet.backends.base import Append, EventRow, Lease, LeaseClaim, Move, RowChange, Timeline
from ortet.backends.postgres.catalog import PostgresCatalog
from ortet.backends.postgres.schema import MIGRATIONS
from ortet.errors import Conflict, Corrupt, Invalid, Refused, Unavailable, Unsupported
from ortet.ids import SystemClock
from ortet.testing.processes import make_oid, run_in_processes, run_in_threads

pytestmark = pytest.mark.postgres

LINE = "0" * 31 + "1"
HOUR = 3600 * 10**9


def event(seq: int, body: bytes = b"body") -> EventRow:
    return EventRow(seq, os.urandom(32), b"salt", body)


def asked(schema: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(
        shared().url(), autocommit=True, options=f"-csearch_path={schema}"
    ) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def open_and_write(url: str, schema: str, number: int) -> int:
    catalog = PostgresCatalog(url, schema=schema)
    try:
        return catalog.put_row("server", str(number), b"").version
    finally:
        catalog.close()


def test_ten_servers_create_the_schema_at_the_same_time(schema: str) -> None:
    url = shared().url()
    versions = run_in_threads(open_and_write, [(url, schema, number) for number in range(10)])
    assert versions == [1] * 10
    assert asked(schema, "SELECT version FROM ortet_format") == [(len(MIGRATIONS),)]


def test_processes_open_a_new_catalog_at_the_same_time(schema: str) -> None:
    jobs = [(shared().url(), schema, number) for number in range(3)]
    assert run_in_processes(open_and_write, jobs) == [1] * 3


def test_a_newer_schema_is_refused(catalog: PostgresCatalog, schema: str) -> None:
    asked(schema, "UPDATE ortet_format SET version = 99")
    with pytest.raises(Unsupported) as caught:
        PostgresCatalog(shared().url(), schema=schema)
    assert caught.value.kind == "newer_format"
    assert "upgrade" in caught.value.message


def test_an_open_catalog_is_refused_after_another_migrates_the_schema(
    catalog: PostgresCatalog, schema: str
) -> None:
    catalog.put_row("kind", "key", b"1")
    asked(schema, "ALTER FUNCTION put_row_in RENAME TO put_row_3")
    with pytest.raises(Unsupported) as caught:
        catalog.put_row("kind", "key", b"2")
    assert caught.value.kind == "newer_format"


def test_a_new_connection_to_a_newer_schema_is_refused(schema: str) -> None:
    catalog = PostgresCatalog(shared().url(), schema=schema)
    asked(schema, "UPDATE ortet_format SET version = 99")
    with pytest.raises(Unsupported) as caught:
        catalog.head("h")
    assert caught.value.kind == "newer_format"
    catalog.close()


def test_opening_a_missing_catalog_without_create_is_refused(schema: str) -> None:
    with pytest.raises(Corrupt) as caught:
        PostgresCatalog(shared().url(), schema=schema, create=False)
    assert caught.value.kind == "no_catalog"


def test_an_unreachable_server_is_reported_without_the_password(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        PostgresCatalog(f"postgresql://ann:secret@/x?host={tmp_path}")
    assert caught.value.kind == "database_gone"
    assert "secret" not in caught.value.message


def test_a_name_too_long_for_an_index_is_refused(catalog: PostgresCatalog) -> None:
    for verb in (
        lambda: catalog.put_row("kind", "x" * 2500, b""),
        lambda: catalog.acquire("x" * 2500, "me", 1),
        lambda: catalog.move([Move("x" * 2500, None, make_oid(1))], verb="v"),
    ):
        with pytest.raises(Invalid) as caught:
            verb()
        assert caught.value.kind == "bad_name"
    assert catalog.row("kind", "x" * 2500) is None


def test_a_read_is_busy_while_all_connections_are_in_use(
    catalog: PostgresCatalog, schema: str
) -> None:
    narrow = PostgresCatalog(shared().url(), schema=schema, connections=1)
    narrow.put_row("kind", "key", b"")
    with psycopg.connect(shared().url(), options=f"-csearch_path={schema}") as other:
        other.execute("LOCK TABLE records")
        waiting = threading.Thread(target=narrow.put_row, args=("kind", "key", b"1"))
        waiting.start()

        def is_blocked() -> object:
            assert waiting.is_alive()
            return other.execute(
                "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'records'::regclass"
            ).fetchall()

        eventually(is_blocked)
        with pytest.raises(Unavailable) as caught, lock_timeout(0.1):
            narrow.head("h")
        assert caught.value.kind == "busy"
    waiting.join(WAIT)
    narrow.close()


def test_a_deadlocked_transaction_is_retried(catalog: PostgresCatalog) -> None:
    def swap(first: str, second: str) -> None:
        for _ in range(20):
            catalog.move(
                [], verb="v", rows=[RowChange("k", first, b""), RowChange("k", second, b"")]
            )

    run_in_threads(swap, [("a", "b"), ("b", "a")])
    row = catalog.row("k", "a")
    assert row is not None
    assert row.version == 40


def test_an_emptied_month_partition_is_dropped_by_reclaim(
    catalog: PostgresCatalog, schema: str
) -> None:
    catalog.move([], verb="open", timelines=[Timeline(LINE)])
    events = [event(seq, os.urandom(3000)) for seq in range(1, 101)]
    catalog.append(LINE, events)
    asked(
        schema,
        """CREATE TABLE events_200001 (LIKE events INCLUDING STORAGE);
        ALTER TABLE events ATTACH PARTITION events_200001 FOR VALUES FROM ('2000-01-01')
            TO ('2000-02-01'); UPDATE events SET made = '2000-01-15'""",
    )
    assert catalog.events(LINE) == events
    catalog.reclaim()
    assert asked(schema, "SELECT to_regclass('events_200001')") != [(None,)]
    catalog.trim_events(LINE, 99)
    catalog.reclaim()
    assert asked(schema, "SELECT to_regclass('events_200001')") == [(None,)]
    assert catalog.events(LINE) == events[-1:]
    assert catalog.last_seq(LINE) == 100
    assert catalog.check() == []


def test_an_append_without_a_month_partition_succeeds(
    catalog: PostgresCatalog, schema: str
) -> None:
    catalog.move([], verb="open", timelines=[Timeline(LINE)])
    for (part,) in asked(
        schema,
        "SELECT relname FROM pg_class WHERE relname ~ '^events_[0-9]+$'"
        " AND relkind = 'r' AND relnamespace = current_schema()::regnamespace",
    ):
        asked(schema, f"DROP TABLE {part}")
    catalog.append(LINE, [event(1)])
    assert catalog.last_seq(LINE) == 1


def test_leases_expire_by_the_clock_of_the_database(schema: str) -> None:
    class Late(SystemClock):
        """A host whose clock is five minutes behind."""

        def now_ns(self) -> int:
            return super().now_ns() - 300 * 10**9

    right = PostgresCatalog(shared().url(), schema=schema)
    late = PostgresCatalog(shared().url(), Late(), schema=schema)
    lease = right.acquire("w", "ann", HOUR // 60)
    with pytest.raises(Refused):
        late.acquire("w", "bob", HOUR)
    seen = late.lease("w")
    assert seen is not None
    left = seen.expires - Late().now_ns()
    assert abs(left - HOUR // 60) < HOUR // 120  # a minute, on its own clock too
    right.release(lease)
    mine = late.acquire("w", "bob", HOUR)
    late.move([Move("h", None, make_oid(1))], verb="v", lease=mine)
    with pytest.raises(Refused):
        right.acquire("w", "ann", HOUR)
    right.close()
    late.close()


def test_writes_relying_on_an_older_sweep_epoch_are_refused(
    catalog: PostgresCatalog, schema: str
) -> None:
    catalog.epochs.set_write_epoch(catalog.epochs.refresh())
    catalog.move([], verb="open", timelines=[Timeline(LINE)])
    asked(schema, "UPDATE floors SET value = value + 1 WHERE \"of\" = 'epoch'")
    for write in (
        lambda: catalog.move([Move("h", None, make_oid(1))], verb="v"),
        lambda: catalog.append(LINE, [event(1)]),
    ):
        with pytest.raises(Conflict) as caught:
            write()
        assert caught.value.kind == "swept"
    catalog.epochs.set_write_epoch(catalog.epochs.cached())
    catalog.append(LINE, [event(1)])
    catalog.epochs.set_write_epoch(None)


def test_a_child_of_fork_has_connections_of_its_own(catalog: PostgresCatalog) -> None:
    catalog.put_row("kind", "key", b"1")
    child = os.fork()
    if not child:
        try:
            catalog.put_row("kind", "child", b"2")
            os._exit(0)
        finally:
            os._exit(1)
    catalog.put_row("kind", "parent", b"3")
    assert os.waitpid(child, 0)[1] == 0
    assert {row.key for row in catalog.rows("kind")} == {"key", "child", "parent"}


@pytest.fixture
def cut(postgres: Shared) -> Iterator[Cut]:
    place = parse_qs(urlsplit(shared().url()).query)["host"][0]
    cut = Cut(f"{place}/.s.PGSQL.5432")
    yield cut
    cut.close()


def test_an_answer_that_was_lost_is_not_a_conflict(schema: str, cut: Cut) -> None:
    url = f"postgresql://postgres@127.0.0.1:{cut.port}/postgres?sslmode=disable&gssencmode=disable"
    catalog = PostgresCatalog(url, schema=schema)
    mark = b"marked-by-the-test"

    def lose_once(word: bytes) -> None:
        left = [1]

        def lose(sent: bytes) -> bool:
            return word in sent and bool(left) and bool(left.pop())

        cut.lose = lose

    catalog.move([], verb="open", timelines=[Timeline(LINE)])
    lose_once(mark)
    catalog.append(LINE, [EventRow(1, mark, b"", b"")], rows=[RowChange("k", "n", b"", expect=0)])
    assert cut.lost == 1
    lose_once(mark)
    lease = catalog.move(
        [Move("branch:a", None, make_oid(1))],
        verb="commit",
        detail=mark.decode(),
        rows=[RowChange("k", "m", b"", expect=0)],
        claims=[LeaseClaim("session", "me", HOUR)],
        appends=[Append(LINE, [event(2)])],
    )
    assert cut.lost == 2
    lose_once(mark)
    row = catalog.put_row("k", "put", mark, expect=0)
    assert cut.lost == 3
    assert row.version == 1
    assert [found.seq for found in catalog.events(LINE)] == [1, 2]
    assert len(catalog.ops()) == 1
    assert lease == [catalog.lease("session")]
    assert [found.version for found in catalog.rows("k")] == [1, 1, 1]
    catalog.close()


def test_an_append_retried_after_a_lost_answer_still_conflicts_with_another(
    schema: str, cut: Cut
) -> None:
    url = f"postgresql://postgres@127.0.0.1:{cut.port}/postgres?sslmode=disable&gssencmode=disable"
    catalog = PostgresCatalog(url, schema=schema)
    catalog.move([], verb="open", timelines=[Timeline(LINE)])
    catalog.append(LINE, [event(1)])
    left = [1]
    cut.lose = lambda sent: b"mine" in sent and bool(left) and bool(left.pop())
    with pytest.raises(Conflict) as caught:
        catalog.append(LINE, [EventRow(1, b"mine", b"", b"")])
    assert caught.value.kind == "seq_taken"
    catalog.close()


def test_a_catalog_reconnects_after_a_server_restart() -> None:
    server = Server()
    try:
        catalog = PostgresCatalog(server.url())
        catalog.put_row("kind", "key", b"1")
        server.stop()
        with pytest.raises(Unavailable) as caught, lock_timeout(0.1):
            catalog.put_row("kind", "key", b"2")
        assert caught.value.kind == "database_gone"
        server.start()
        lasting = PostgresCatalog(server.url())
        assert lasting.put_row("kind", "key", b"3").version == 2
        server.stop()
        server.start()
        assert lasting.put_row("kind", "key", b"4").version == 3
        assert isinstance(lasting.acquire("w", "me", HOUR), Lease)
        catalog.close()
        lasting.close()
    finally:
        server.end()

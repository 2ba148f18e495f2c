"""Wake-ups through PostgreSQL: on one connection, lost and back, and nobody else's."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import psycopg
import pytest
from tests.fixtures.postgres import Server, Shared, drop_schema, new_schema, shared
from tests.fixtures.waiting import WAIT, eventually

from ortet.backends.postgres.catalog import PostgresCatalog
from ortet.backends.postgres.notify import postgres_signal
from ortet.backends.postgres.pool import PostgresDatabase
from ortet.backends.pubsub import _CHANNELS, PubSubSignal
from ortet.errors import Invalid

pytestmark = [pytest.mark.postgres, pytest.mark.usefixtures("unhurried")]


@pytest.fixture
def database(postgres: Shared) -> Iterator[PostgresDatabase]:
    schema = new_schema()
    catalog = PostgresCatalog(f"{shared().url()}&application_name={schema}", schema=schema)
    yield catalog.database
    catalog.close()
    drop_schema(shared().url(), schema)


@pytest.fixture
def hears(database: PostgresDatabase) -> Iterator[PubSubSignal]:
    signal = postgres_signal(database, "space")
    yield signal
    signal.close()


def asked(database: PostgresDatabase, statement: str) -> int:
    with psycopg.connect(shared().url(), autocommit=True) as connection:
        return len(connection.execute(statement, (database.schema,)).fetchall())


def listening(database: PostgresDatabase) -> int:
    """After some seconds of silence it has asked nothing, to see whether it is answered."""
    statement = (
        "SELECT 1 FROM pg_stat_activity WHERE application_name = %s"
        " AND (query = '' OR query LIKE 'LISTEN%%')"
    )
    return asked(database, statement)


def is_shared(database: PostgresDatabase) -> bool:
    """Other tests may have left some of their own."""
    return any(getattr(wire, "database", None) == database for wire in _CHANNELS)


def test_signals_of_a_process_share_one_connection(database: PostgresDatabase) -> None:
    others = set(threading.enumerate())
    signals = [postgres_signal(database, "space") for _ in range(20)]
    parts = [signal.with_prefix("want") for signal in signals]
    for signal in (*signals, *parts):
        signal.token("want:1")
        signal.notify("want:1")
    eventually(lambda: listening(database) == 1)
    for signal in (*signals, *parts):
        signal.close()
    assert not is_shared(database)
    eventually(lambda: listening(database) == 0)
    eventually(lambda: not [t for t in {*threading.enumerate()} - others if "postgres" in t.name])


def test_a_garbage_collected_signal_releases_its_connection(database: PostgresDatabase) -> None:
    postgres_signal(database, "space").token("topic")
    eventually(lambda: not is_shared(database))
    eventually(lambda: listening(database) == 0)


def test_a_signal_reconnects_after_its_connection_was_terminated(
    hears: PubSubSignal, database: PostgresDatabase
) -> None:
    token = hears.token("topic")
    asked(
        database,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
    )
    assert hears.wait("topic", token, WAIT) is True  # anything may have happened
    eventually(lambda: listening(database) == 1 and not hears.last_error)
    other = _Another(database)
    token, _ = hears.wait_any(None, 0.0)

    def is_heard() -> bool:
        """Tell once more: what is told on a connection that was cut is lost."""
        nonlocal token
        other.tell("theirs")
        token, topics = hears.wait_any(token, 1.0)
        return "theirs" in (topics or ())

    eventually(is_heard)


def test_a_signal_reconnects_after_a_server_restart() -> None:
    server = Server()
    signal = None
    try:
        catalog = PostgresCatalog(server.url())
        signal = postgres_signal(catalog.database, "space")
        token = signal.token("topic")
        server.stop()
        assert signal.wait("topic", token, WAIT) is True
        token = signal.token("topic")
        assert signal.wait("topic", token, WAIT) is True  # each second again
        assert signal.last_error
        signal.notify("topic")  # is no error
        server.start()
        eventually(lambda: not signal.last_error)
        token, _ = signal.wait_any(None, 0.0)
        other = _Another(catalog.database)
        other.tell("theirs")
        _, topics = signal.wait_any(token, WAIT)
        assert topics is None or topics == {"theirs"}
        catalog.close()
    finally:
        if signal is not None:
            signal.close()
        server.end()


def test_a_narrowed_signal_hears_nothing_else(
    hears: PubSubSignal, database: PostgresDatabase
) -> None:
    narrow = hears.with_prefix("want")
    token, _ = narrow.wait_any(None, 0.0)
    other = _Another(database)
    other.tell("other")
    other.tell("want:1")
    _, topics = narrow.wait_any(token, WAIT)
    assert topics is None or topics == {"want:1"}
    narrow.close()
    with pytest.raises(Invalid) as caught:
        hears.with_prefix("a*")
    assert caught.value.kind == "bad_topic"


def test_signals_of_different_spaces_are_isolated(
    hears: PubSubSignal, database: PostgresDatabase
) -> None:
    token, _ = hears.wait_any(None, 0.0)
    _Another(database, "others").tell("theirs")
    _Another(database).tell("ours")
    _, topics = hears.wait_any(token, WAIT)
    assert topics is None or topics == {"ours"}


def test_an_overlong_topic_is_reported_as_any_topic(
    hears: PubSubSignal, database: PostgresDatabase
) -> None:
    token, _ = hears.wait_any(None, 0.0)
    _Another(database).tell("\N{SNOWMAN}" * 3000)
    _, topics = hears.wait_any(token, WAIT)
    assert topics is None


def test_a_child_is_heard_by_its_parent(hears: PubSubSignal, database: PostgresDatabase) -> None:
    _Another(database).tell("before")
    token = hears.token("topic")
    child = os.fork()
    if not child:
        try:
            hears.notify("topic")
            hears.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert hears.wait("topic", token, WAIT) is True


class _Another:
    """A process of another host, as the database sees it."""

    def __init__(self, database: PostgresDatabase, space: str = "space") -> None:
        self._database = database
        self._space = space

    def tell(self, topic: str) -> None:
        child = os.fork()
        if not child:
            try:
                signal = postgres_signal(self._database, self._space)
                signal.notify(topic)
                signal.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0

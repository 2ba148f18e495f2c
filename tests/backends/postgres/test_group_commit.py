"""Appends of threads that come at once: one transaction, each with its own answer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest
from tests.fixtures.postgres import shared
from tests.fixtures.waiting import WAIT, eventually

from ortet.backends.base import EventRow, Lease, LeaseClaim, Timeline
from ortet.backends.postgres.catalog import PostgresCatalog
from ortet.backends.postgres.group_commit import (
    MAX_RUNNING_STATEMENTS,
    GroupCommit,
    PendingAppend,
    group_commit_for,
)
from ortet.errors import Conflict, OrtetError, Refused, Unavailable

COUNT = 8
HOUR = 3600 * 10**9


def line(number: int) -> str:
    return f"{number:032x}"


def event(seq: int) -> EventRow:
    return EventRow(seq, os.urandom(32), b"salt", b"body")


@pytest.fixture
def leases(catalog: PostgresCatalog) -> list[Lease]:
    """Each of a timeline of its own."""
    lines = [Timeline(line(number)) for number in range(COUNT)]
    claims = [LeaseClaim(f"session-{number}", "me", HOUR) for number in range(COUNT)]
    return catalog.move([], verb="open", timelines=lines, claims=claims)


@contextmanager
def held_up(schema: str) -> Iterator[psycopg.Connection]:
    """No event is written as long as the block lasts."""
    with psycopg.connect(shared().url(), options=f"-csearch_path={schema}") as connection:
        connection.execute("LOCK TABLE events IN EXCLUSIVE MODE")
        yield connection


def at_once(
    catalog: PostgresCatalog,
    schema: str,
    calls: list[Callable[[], None]],
    meanwhile: Callable[[psycopg.Connection], None] = lambda _: None,
) -> list[OrtetError | None]:
    """What became of each: the first ones are under way, all others wait, then all go on."""
    found: list[OrtetError | None] = [None] * len(calls)

    def work(number: int) -> None:
        try:
            calls[number]()
        except OrtetError as error:
            found[number] = error

    shared_ones = group_commit_for(catalog.database)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(calls))]
    with held_up(schema) as connection:
        for number, thread in enumerate(threads):
            thread.start()
            if number >= MAX_RUNNING_STATEMENTS:
                eventually(lambda: len(shared_ones._waiting) == number - MAX_RUNNING_STATEMENTS + 1)  # noqa: B023
            else:
                eventually(lambda: shared_ones._running == number + 1)  # noqa: B023
        meanwhile(connection)
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
    return found


def transactions(schema: str) -> int:
    with psycopg.connect(shared().url(), options=f"-csearch_path={schema}") as connection:
        row = connection.execute("SELECT count(DISTINCT xmin::text) FROM events").fetchone()
    assert row is not None
    return int(row[0])


def appends(catalog: PostgresCatalog, leases: list[Lease]) -> list[Callable[[], None]]:
    def one(number: int) -> Callable[[], None]:
        several = [event(seq) for seq in range(1, number + 2)]
        return lambda: catalog.append(line(number), several, lease=leases[number])

    return [one(number) for number in range(COUNT)]


def test_waiting_appends_are_written_in_one_transaction(
    catalog: PostgresCatalog, schema: str, leases: list[Lease]
) -> None:
    assert at_once(catalog, schema, appends(catalog, leases)) == [None] * COUNT
    assert transactions(schema) == MAX_RUNNING_STATEMENTS + 1
    for number in range(COUNT):
        assert [found.seq for found in catalog.events(line(number))] == [*range(1, number + 2)]


def test_catalogs_of_one_process_write_together(
    catalog: PostgresCatalog, schema: str, leases: list[Lease]
) -> None:
    others = [PostgresCatalog(shared().url(), schema=schema) for _ in range(COUNT)]
    calls = [appends(other, leases)[number] for number, other in enumerate(others)]
    assert at_once(catalog, schema, calls) == [None] * COUNT
    assert transactions(schema) == MAX_RUNNING_STATEMENTS + 1
    for other in others:
        other.close()


def test_each_refused_append_of_a_group_gets_its_own_error(
    catalog: PostgresCatalog, schema: str, leases: list[Lease]
) -> None:
    calls = appends(catalog, leases)
    catalog.release(leases[5])
    calls[6] = lambda: catalog.append(line(6), [event(4)], lease=leases[6])
    found = at_once(catalog, schema, calls)
    lost, taken = found[5], found[6]
    assert isinstance(lost, Refused)
    assert lost.kind == "lease_lost"
    assert isinstance(taken, Conflict)
    assert taken.kind == "seq_taken"
    assert [one for one in found if one is not None] == [lost, taken]
    there = [catalog.last_seq(line(number)) for number in range(COUNT)]
    assert there == [1, 2, 3, 4, 5, 0, 0, 8]


def test_a_group_append_retried_after_a_lost_connection_writes_once(
    catalog: PostgresCatalog, schema: str, leases: list[Lease]
) -> None:
    def cut(connection: psycopg.Connection) -> None:
        waiting = "FROM pg_locks WHERE NOT granted AND relation = 'events'::regclass"
        eventually(
            lambda: connection.execute(f"SELECT {waiting}").rowcount == MAX_RUNNING_STATEMENTS
        )
        connection.execute(f"SELECT pg_terminate_backend(pid) {waiting}")

    assert at_once(catalog, schema, appends(catalog, leases), cut) == [None] * COUNT
    for number in range(COUNT):
        assert [found.seq for found in catalog.events(line(number))] == [*range(1, number + 2)]


class Stub:
    """One that waits until it may, and then does as it is told."""

    def __init__(self) -> None:
        self.ones = GroupCommit()
        self.go = threading.Event()
        self.fails: Exception | None = None
        self.alone: list[bool] = []
        self.ran: list[int] = []
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def start(self) -> None:
        thread = threading.Thread(target=self._work)
        self.threads.append(thread)
        thread.start()

    def _work(self) -> None:
        try:
            self.append()
        except Exception as error:
            self.errors.append(error)

    def append(self) -> None:
        self.ones.append(one(), self._run, self._alone)

    def _run(self, statement: str, values: dict[str, Any]) -> None:
        self.ran.append(len(values["lines"]))
        if self.fails is not None:
            raise self.fails

    def _alone(self, doubt: bool) -> None:
        self.go.wait(WAIT)
        self.alone.append(doubt)

    def busy(self, waiting: int) -> None:
        """As many under way as may be, and so many who wait."""
        for _ in range(MAX_RUNNING_STATEMENTS):
            self.start()
        eventually(lambda: self.ones._running == MAX_RUNNING_STATEMENTS)
        for number in range(waiting):
            self.start()
            eventually(lambda: len(self.ones._waiting) == number + 1)  # noqa: B023

    def end(self) -> None:
        self.go.set()
        for thread in self.threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        assert self.ones._running == 0


def one() -> PendingAppend:
    return PendingAppend(UUID(int=1), 1, [b"h"], [b"s"], [b"b"], None, None, None)


def test_every_waiting_append_fails_when_the_database_is_gone() -> None:
    stub = Stub()
    stub.busy(3)
    stub.fails = Unavailable("database_gone", "gone")
    stub.end()
    assert [error.kind for error in stub.errors if isinstance(error, Unavailable)] == [
        "database_gone"
    ] * 3
    assert stub.ran == [3]


def test_after_a_refused_group_each_append_is_retried_alone() -> None:
    stub = Stub()
    stub.busy(3)
    stub.fails = Conflict("seq_taken", "taken")
    stub.end()
    assert stub.errors == []
    assert stub.alone == [False] * (MAX_RUNNING_STATEMENTS + 3)


def test_an_interrupted_group_writer_makes_the_others_check_and_retry() -> None:
    stub = Stub()
    stub.busy(3)
    stub.fails = RuntimeError("interrupted")
    stub.end()
    assert stub.errors == [stub.fails]
    assert sorted(stub.alone) == [False] * MAX_RUNNING_STATEMENTS + [True] * 2


def test_an_interrupted_waiter_is_removed_from_the_queue() -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    stub = Stub()
    stub.busy(0)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        main = threading.get_ident()

        def soon() -> None:
            eventually(lambda: len(stub.ones._waiting) == 1)
            signal.pthread_kill(main, signal.SIGUSR1)

        helper = threading.Thread(target=soon)
        helper.start()
        with pytest.raises(Interrupted):
            stub.append()
        helper.join(WAIT)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stub.ones._waiting == []
    stub.start()
    eventually(lambda: len(stub.ones._waiting) == 1)
    stub.end()
    assert sorted(stub.alone) == [False] * (MAX_RUNNING_STATEMENTS + 1)


def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    stub = Stub()
    stub.busy(2)
    pid = os.fork()
    if pid == 0:
        stub.go.set()
        stub.append()
        os._exit(0 if stub.alone == [False] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    stub.end()
    assert stub.ran == [2]

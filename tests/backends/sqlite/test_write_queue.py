"""Threads that write to one SQLite file: in order, together where they can, and none for another's
fault."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread

import apsw
import pytest
from tests.fixtures.waiting import WAIT, eventually

from ortet.backends.base import EventRow, Timeline
from ortet.backends.sqlite.catalog import SqliteCatalog
from ortet.backends.sqlite.write_queue import Insert, WriteQueue, write_queue_for
from ortet.errors import Refused, Unavailable
from ortet.ids import SystemClock

MANY = 8


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(MANY) as pool:
        yield pool


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[], apsw.Connection]]:
    made: list[apsw.Connection] = []

    def connect() -> apsw.Connection:
        made.append(apsw.Connection(str(tmp_path / "file.db")))
        made[-1].execute("PRAGMA journal_mode = WAL").fetchall()
        made[-1].execute("CREATE TABLE IF NOT EXISTS t (n)")
        return made[-1]

    yield connect
    for one in made:
        one.close()


def inserted(number: int) -> Insert:
    def add(db: apsw.Connection) -> bool:
        db.execute("INSERT INTO t VALUES (?)", (number,))
        return number >= 0

    return add


def waiting(turns: WriteQueue, count: int) -> None:
    """Wait until so many threads wait for their turn."""
    eventually(lambda: len(turns._waiting) == count, say=lambda: turns._waiting)


def begun(
    pool: ThreadPoolExecutor,
    turns: WriteQueue,
    connect: Callable[[], apsw.Connection],
    adds: list[Insert],
) -> list[Future[bool]]:
    """Each in a thread with a connection of its own; all of them wait for their turn."""
    done = [pool.submit(turns.insert_batched, connect(), add, WAIT) for add in adds]
    waiting(turns, len(adds))
    return done


def test_waiting_writes_are_committed_in_one_transaction(
    pool: ThreadPoolExecutor, connect: Callable[[], apsw.Connection]
) -> None:
    turns, commits = WriteQueue(), list[int]()

    def hook() -> bool:
        commits.append(1)
        return False

    def counted() -> apsw.Connection:
        db = connect()
        db.set_commit_hook(hook)
        return db

    with turns.exclusive(WAIT):
        done = begun(pool, turns, counted, [inserted(n) for n in (3, -1, 5, 7)])
    assert [one.result(WAIT) for one in done] == [True, False, True, True]
    assert len(commits) == 1
    rows = connect().execute("SELECT n FROM t ORDER BY n").fetchall()
    assert rows == [(-1,), (3,), (5,), (7,)]
    assert turns.insert_batched(connect(), inserted(9), WAIT)  # and it is free again


def test_a_failing_write_does_not_fail_the_others_of_its_group(
    pool: ThreadPoolExecutor, connect: Callable[[], apsw.Connection]
) -> None:
    def broken(db: apsw.Connection) -> bool:
        db.execute("INSERT INTO t VALUES (100)")
        raise apsw.FullError("no room for this one")

    turns = WriteQueue()
    with turns.exclusive(WAIT):
        done = begun(pool, turns, connect, [inserted(1), broken, inserted(2)])
    assert done[0].result(WAIT)
    assert done[2].result(WAIT)
    with pytest.raises(apsw.FullError):
        done[1].result(WAIT)
    count = "SELECT count(*) FROM t WHERE n < 100"
    assert connect().execute(count).get == 2


def test_a_writer_that_waits_too_long_gets_a_busy_error(
    connect: Callable[[], apsw.Connection], pool: ThreadPoolExecutor
) -> None:
    turns, db = WriteQueue(), connect()

    def exclusive() -> None:
        with turns.exclusive(0.01):
            pass

    with turns.exclusive(WAIT):
        with pytest.raises(apsw.BusyError):
            pool.submit(turns.insert_batched, db, inserted(1), 0.01).result()
        with pytest.raises(apsw.BusyError):
            pool.submit(exclusive).result()
    assert turns.insert_batched(db, inserted(1), WAIT)
    assert db.execute("SELECT count(*) FROM t").get == 1


def test_thread_that_was_interrupted_while_it_led_writes_again(
    connect: Callable[[], apsw.Connection], pool: ThreadPoolExecutor
) -> None:
    turns, db = WriteQueue(), connect()
    assert turns._try_lead()  # interrupted here: nobody releases
    assert turns.insert_batched(db, inserted(1), 0.01)
    assert turns._try_lead()
    with turns.exclusive(0.01):
        pass
    assert pool.submit(turns.insert_batched, db, inserted(2), WAIT).result()


def test_writers_take_turns_in_arrival_order(pool: ThreadPoolExecutor) -> None:
    turns, order = WriteQueue(), list[int]()

    def write(number: int) -> None:
        with turns.exclusive(WAIT):
            order.append(number)

    with turns.exclusive(WAIT):
        done = []
        for number in range(MANY):
            done.append(pool.submit(write, number))
            waiting(turns, number + 1)
    for one in done:
        one.result(WAIT)
    assert order == list(range(MANY))


def test_one_file_has_one_queue_under_every_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    found = write_queue_for(tmp_path / "a.db")
    assert write_queue_for(tmp_path / "link" / "a.db") is found
    assert write_queue_for(tmp_path / "b.db") is not found


def line(number: int) -> str:
    return f"{number:032x}"


def test_many_catalogs_append_to_one_file(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    catalogs = [SqliteCatalog(tmp_path / "catalog.db") for _ in range(MANY)]
    each = 40

    def write(number: int) -> None:
        catalog = catalogs[number]
        catalog.move([], verb="begin", timelines=[Timeline(line(number))])
        lease = catalog.acquire(f"lease-{number}", "me", 10**12)
        for seq in range(1, each + 1):
            if seq % 9 == 0:
                catalog.put_row("kind", f"{number}", b"%d" % seq)
            catalog.append(line(number), [EventRow(seq, b"h" * 8, b"s", b"x")], lease=lease)

    for done in [pool.submit(write, number) for number in range(MANY)]:
        done.result(WAIT)
    for number in range(MANY):
        assert [e.seq for e in catalogs[0].events(line(number))] == list(range(1, each + 1))
    for catalog in catalogs:
        catalog.close()


def test_a_lost_lease_in_a_group_stops_only_its_own(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    path = tmp_path / "catalog.db"
    good, bad = SqliteCatalog(path), SqliteCatalog(path)
    good.move([], verb="begin", timelines=[Timeline(line(1)), Timeline(line(2))])
    held, lost = good.acquire("good", "me", 10**12), bad.acquire("bad", "me", 10**12)
    first = [EventRow(1, b"h" * 8, b"s", b"x")]
    good.append(line(1), first, lease=held)
    bad.append(line(2), first, lease=lost)
    good.seize(lost)
    second = [EventRow(2, b"h" * 8, b"s", b"x")]
    with write_queue_for(path).exclusive(WAIT):
        done = [
            pool.submit(good.append, line(1), second, lease=held),
            pool.submit(bad.append, line(2), second, lease=lost),
        ]
        waiting(write_queue_for(path), 2)
    done[0].result(WAIT)
    with pytest.raises(Refused) as refused:
        done[1].result(WAIT)
    assert refused.value.kind == "lease_lost"
    assert (good.last_seq(line(1)), good.last_seq(line(2))) == (2, 1)
    good.close()
    bad.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_among_writers_leaves_a_child_that_can_write(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    catalogs = [SqliteCatalog(path) for _ in range(3)]
    catalogs[0].move([], verb="begin", timelines=[Timeline(line(n)) for n in range(3)])
    stop = Event()

    def write(number: int) -> None:
        for seq in range(1, 100_000):
            if stop.is_set():
                return
            catalogs[number].append(line(number), [EventRow(seq, b"h" * 8, b"s", b"x")])

    threads = [Thread(target=write, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        for round_ in range(5):
            pid = os.fork()
            if pid == 0:
                try:
                    catalogs[0].put_row("child", str(round_), b"x")
                    catalogs[0].append(line(0), [EventRow(round_ + 1, b"h" * 8, b"s", b"x")])
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT)
    assert catalogs[0].last_seq(line(0)) == 5
    for catalog in catalogs:
        catalog.close()


def test_a_file_locked_by_another_process_is_busy_for_every_waiter(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    path = tmp_path / "catalog.db"
    catalogs = [SqliteCatalog(path, SystemClock(), busy_ms=50) for _ in range(3)]
    catalogs[0].move([], verb="begin", timelines=[Timeline(line(n)) for n in range(3)])
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")  # as of another process: it asks for no turn
    first = [EventRow(1, b"h" * 8, b"s", b"x")]
    for done in [pool.submit(one.append, line(n), first) for n, one in enumerate(catalogs)]:
        with pytest.raises(Unavailable) as refused:
            done.result(WAIT)
        assert refused.value.kind == "busy"
    other.execute("ROLLBACK")
    other.close()
    for number, catalog in enumerate(catalogs):
        catalog.append(line(number), first)
        catalog.close()

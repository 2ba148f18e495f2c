"""One file of an index in many hands of a process: a few connections serve all of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, Thread

import pytest
from tests.fixtures.waiting import WAIT, eventually

import ortet
from ortet.errors import Invalid
from ortet.memory.lexical.index import SqliteWordIndex
from ortet.memory.lexical.index_file import _POOLS, IndexFile, SharedIndexFile
from ortet.memory.records import MemoryDocument

MANY = 16
SCHEMA = "CREATE TABLE words (word TEXT)"


class Counted:
    """The connections that were made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made: list[IndexFile] = []

    def __call__(self) -> IndexFile:
        self.made.append(IndexFile(self.path, schema=SCHEMA, version=1, busy_ms=5000))
        return self.made[-1]


def in_threads(count: int, do: Callable[[int], None]) -> None:
    together = Barrier(count)

    def begin(number: int) -> None:
        together.wait(WAIT)
        do(number)

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(begin, range(count)))


def test_many_users_share_a_few_connections(tmp_path: Path) -> None:
    opened = Counted(tmp_path / "index.db")
    users = [SharedIndexFile(opened.path, opened) for _ in range(MANY)]

    def write(number: int) -> None:
        for turn in range(10):
            word = f"{number}-{turn}"
            with users[number].transaction(write=True) as connection:
                connection.execute("INSERT INTO words VALUES (?)", (word,))
            with users[number].transaction() as connection:  # also on the other connection
                sql = "SELECT count(*) FROM words WHERE word = ?"
                assert connection.execute(sql, (word,)).get == 1

    in_threads(MANY, write)
    with users[0].transaction() as connection:
        assert connection.execute("SELECT count(*) FROM words").get == MANY * 10
    assert 1 <= len(opened.made) <= 2
    for user in users:
        user.close()
    assert os.path.realpath(opened.path) not in _POOLS


def test_closing_one_user_keeps_the_file_open_for_the_others(tmp_path: Path) -> None:
    opened = Counted(tmp_path / "index.db")
    first, second = SharedIndexFile(opened.path, opened), SharedIndexFile(opened.path, opened)
    with first.transaction(write=True) as connection:
        second.close()
        connection.execute("INSERT INTO words VALUES ('here')")
    with first.transaction() as connection:
        assert connection.execute("SELECT word FROM words").get == "here"
    with pytest.raises(Invalid, match="was closed"), second.transaction():
        pass
    first.close()
    first.close()
    with pytest.raises(Invalid, match="was closed"), first.transaction():
        pass
    for file in opened.made:
        with pytest.raises(Invalid, match="was closed"), file.transaction():
            pass


def test_a_connection_in_use_during_the_last_close_is_closed_afterwards(tmp_path: Path) -> None:
    opened = Counted(tmp_path / "index.db")
    user = SharedIndexFile(opened.path, opened)
    with user.transaction() as connection:
        user.close()
        assert connection.execute("SELECT count(*) FROM words").get == 0
    (file,) = opened.made
    with pytest.raises(Invalid, match="was closed"), file.transaction():
        pass


def test_waiting_users_get_the_connection_in_order(tmp_path: Path) -> None:
    opened = Counted(tmp_path / "index.db")
    user = SharedIndexFile(opened.path, opened, max_connections=1)
    served: list[int] = []

    def ask(number: int) -> None:
        with user.transaction():
            served.append(number)

    with user.transaction():
        threads = []
        pool = user._pool
        assert pool is not None
        for number in range(5):
            threads.append(Thread(target=ask, args=(number,)))
            threads[-1].start()
            eventually(lambda: len(pool._waiting) > number)  # noqa: B023
    for thread in threads:
        thread.join(WAIT)
    assert served == [0, 1, 2, 3, 4]
    user.close()


def test_an_index_in_memory_is_shared_by_all_users(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "index.db"
    users = [SqliteWordIndex(path, shared=True) for _ in range(4)]
    users[0].add("a" * 32, 0, 1, [MemoryDocument(1, "working", "zebra", 1)], [])
    assert users[0].in_memory
    in_threads(4, lambda number: _knows(users[number]))
    users[1].drop()
    assert not users[2].in_memory
    assert users[3].indexed_seq("a" * 32) == 0
    for user in users:
        user.close()


def _knows(index: SqliteWordIndex) -> None:
    for _ in range(50):
        assert index.indexed_seq("a" * 32) == 1


def test_a_forked_child_of_a_busy_process_opens_its_own_index(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    index = SqliteWordIndex(path, shared=True)
    index.add("a" * 32, 0, 1, [MemoryDocument(1, "working", "zebra", 1)], [])
    stop = Event()

    def search() -> None:
        while not stop.is_set():
            index.indexed_seq("a" * 32)

    threads = [Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:  # pragma: no cover
                fine = 1
                try:
                    fine = int(SqliteWordIndex(path, shared=True).indexed_seq("a" * 32) != 1)
                finally:
                    os._exit(fine)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT)
    index.close()


def test_hubs_of_one_process_recall_from_threads(tmp_path: Path) -> None:
    """Each sees all that was said before it asks, whoever said it."""
    store = tmp_path / "store"
    with ortet.open(store) as hub:
        for number in range(MANY):
            with hub.session(f"s{number}") as session:
                session.say("user", f"the zebra number{number} sleeps")

    def work(number: int) -> None:
        with ortet.open(store) as own, own.session(f"s{number}") as session:
            for turn in range(5):
                session.say("user", f"turn{turn} of number{number} zebra")
                found = session.recall("zebra", k=20)
                texts = {hit.text for hit in found}
                assert f"turn{turn} of number{number} zebra" in texts
                assert all(f"number{number}" in text.split() for text in texts)
                assert len(texts) == turn + 2

    in_threads(MANY, work)
    with ortet.open(store) as hub:
        assert len(hub.recall("zebra", k=200)) == MANY * 6
    assert os.path.realpath(store / "local" / "memory" / "index.db") not in _POOLS

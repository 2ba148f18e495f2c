"""A database in WAL mode that is written all the time, also while its machine is copied."""

from __future__ import annotations

import pytest
from tests.live.lives import Life, told, until

from ortet.sessions.session import Session

_WRITER = """
import os, sqlite3, time
db = sqlite3.connect("data.db", isolation_level=None)
db.execute("pragma journal_mode = wal")
db.execute("pragma wal_autocheckpoint = 50")
db.execute("create table t (id integer primary key, body blob)")
db.execute("create index i on t (body)")
number = 0
while True:
    db.execute("begin immediate")
    for _ in range(20):
        number += 1
        db.execute("insert into t values (?, ?)", (number, os.urandom(400)))
    db.execute("delete from t where id % 7 = ?", (number % 7,))
    db.execute("commit")
    open("count.new", "w").write(str(number))
    os.rename("count.new", "count")
    while os.path.exists("stop"):
        time.sleep(0.01)
"""
_CHECK = """
import sqlite3
db = sqlite3.connect("data.db")
(whole,), = db.execute("pragma integrity_check")
(last,), = db.execute("select max(id) from t")
print(whole, last)
"""


def check(session: Session) -> int:
    """Is it whole, and does the writer go on? Returns how far it is."""
    first = int(told(session, "cat count"))
    until(session, f"[ $(cat count) -gt {first + 100} ]")
    whole, last = told(session, f"python3 -c '{_CHECK}'").split()
    assert whole == "ok"
    assert int(last) > first
    return int(last)


@pytest.mark.slow
def test_each_copy_of_a_wal_database_is_consistent_and_continues(life: Life) -> None:
    session = life.begin()
    session.spawn("writer", ["python3", "-c", _WRITER])
    until(session, "[ $(cat count) -gt 1000 ]")
    commits = [session.commit(f"moment {number}") for number in range(3)]
    forks = session.fork(2)
    grand = forks[0].fork(2)
    for copy in (session, *forks, *grand):
        check(copy)
    told(session, "touch stop")
    stood = int(told(session, "cat count"))
    assert check(grand[1]) > 0
    assert int(told(session, "cat count")) in (stood, stood + 20)
    life.kill()
    restored = life.hub.session(session.name)
    for commit in reversed(commits):
        restored.restore(commit.oid)
        check(restored)

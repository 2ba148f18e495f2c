"""What SqliteCatalog does when processes die, disks fill and files are not what they should be."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import apsw
import pytest
from tests.fixtures import forked

from ortet.backends.base import Catalog, EventRow, Move, Timeline
from ortet.backends.sqlite.catalog import SqliteCatalog
from ortet.errors import Conflict, Corrupt, Unavailable
from ortet.ids import Clock, SystemClock
from ortet.testing.processes import increment_head, make_oid, run_in_processes, run_in_threads

pytestmark = pytest.mark.disk("1m")

HALF = """
import sys
from pathlib import Path
from ortet.backends.sqlite.catalog import SqliteCatalog

class Clock:
    'Asked for the time inside the transaction, when the lock is held.'
    asked = 0
    def now_ns(self):
        self.asked += 1
        if self.asked > 1:
            print("inside", flush=True)
            sys.stdin.read()
        return 1

from ortet.backends.base import Move, RowChange
catalog = SqliteCatalog(Path(sys.argv[1]), Clock())
one, two = (1).to_bytes(32, "big"), (2).to_bytes(32, "big")
catalog.move([Move("h", None, one)], verb="create")
catalog.move([Move("h", one, two)], verb="commit")
"""

COUNTER = """
import sys
from pathlib import Path
from ortet.backends.base import Move, RowChange
from ortet.backends.sqlite.catalog import SqliteCatalog
catalog = SqliteCatalog(Path(sys.argv[1]))
while True:
    head = catalog.head("h")
    old = head and head.oid
    new = (int.from_bytes(old or b"") + 1).to_bytes(32, "big")
    catalog.move([Move("h", old, new)], verb="raise", rows=[RowChange("kind", "key", new)])
    print(int.from_bytes(new), flush=True)
"""

FORKER = """
import os, sys, threading
from functools import partial
from pathlib import Path
from ortet.backends.sqlite.catalog import SqliteCatalog
from ortet.testing.processes import increment_head

class Open:
    'The parent keeps its handle: what it opened is what the children use.'
    def __init__(self, catalog): self.catalog = catalog
    def __getattr__(self, name):
        return (lambda: None) if name == "close" else getattr(self.catalog, name)

catalog = SqliteCatalog(Path(sys.argv[1]))
increment_head(lambda clock: Open(catalog), "h", 1)
threads = [
    threading.Thread(target=increment_head, args=(lambda clock: Open(catalog), "h", 100))
    for _ in range(2)
]
for thread in threads: thread.start()
children = []
for _ in range(8):
    pid = os.fork()
    if pid == 0:
        increment_head(lambda clock: Open(catalog), "h", 25)
        pid = os.fork()
        if pid == 0:
            increment_head(lambda clock: Open(catalog), "h", 5)
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.exit(ended)
    children.append(pid)
for thread in threads: thread.join()
increment_head(lambda clock: Open(catalog), "h", 1)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
assert codes == [0] * 8, codes
print(int.from_bytes(catalog.head("h").oid, "big"), catalog.check())
"""

BEHIND = """
import ctypes, os, sys
from pathlib import Path
from ortet.backends.sqlite.catalog import SqliteCatalog
from ortet.errors import Unsupported
catalog = SqliteCatalog(Path(sys.argv[1]))
pid = ctypes.CDLL(None).fork()
if pid == 0:
    try:
        catalog.head("h")
    except Unsupported as error:
        os._exit(0 if error.kind == "forked_handle" else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert catalog.head("h") is None
"""


@pytest.fixture
def catalog(path: Path) -> Iterator[SqliteCatalog]:
    """A catalog in a SQLite file."""
    catalog = SqliteCatalog(path)
    yield catalog
    catalog.close()


def run(script: str, *arguments: Path) -> str:
    command = [sys.executable, "-W", "ignore", "-c", script, *map(str, arguments)]
    done = forked.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return str(done.stdout)


def test_a_killed_transaction_leaves_no_partial_change(path: Path) -> None:
    command = [sys.executable, "-c", HALF, str(path)]
    with forked.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "inside\n"
        waiting = SqliteCatalog(path, busy_ms=20)
        with pytest.raises(Unavailable) as caught:
            waiting.move([Move("h", make_oid(1), make_oid(3))], verb="commit")
        assert caught.value.kind == "busy"
        head = waiting.head("h")  # readers do not wait
        assert head is not None
        assert head.oid == make_oid(1)
        writer.send_signal(signal.SIGKILL)
    waiting.move([Move("h", make_oid(1), make_oid(3))], verb="commit")
    assert [op.new for op in waiting.ops("h")] == [make_oid(1), make_oid(3)]
    assert waiting.check() == []
    waiting.close()


def test_acknowledged_writes_survive_sigkill(path: Path) -> None:
    for _ in range(5):
        command = [sys.executable, "-c", COUNTER, str(path)]
        with forked.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            said = [int(writer.stdout.readline()) for _ in range(20)]
            writer.send_signal(signal.SIGKILL)
            said += [int(line) for line in writer.stdout]
        catalog = SqliteCatalog(path)
        head, row = catalog.head("h"), catalog.row("kind", "key")
        assert head is not None
        assert row is not None
        assert int.from_bytes(head.oid, "big") in (said[-1], said[-1] + 1)
        assert row.value == head.oid
        assert catalog.check() == []
        catalog.close()


def test_a_catalog_handle_works_after_fork(path: Path) -> None:
    assert run(FORKER, path) == f"{1 + 200 + 8 * 30 + 1} []\n"


def test_a_handle_in_an_unannounced_fork_is_refused(path: Path) -> None:
    run(BEHIND, path)


def test_six_processes_lose_no_move_of_one_head(path: Path, catalog: SqliteCatalog) -> None:
    run_in_processes(increment_head, [(partial(SqliteCatalog, path), "h", 100)] * 6)
    head = catalog.head("h")
    assert head is not None
    assert head.oid == make_oid(600)
    assert [op.new for op in catalog.ops("h")] == [make_oid(n) for n in range(1, 601)]


def test_six_processes_create_one_catalog_at_the_same_time(path: Path) -> None:
    run_in_processes(increment_head, [(partial(SqliteCatalog, path), "h", 1)] * 6)
    catalog = SqliteCatalog(path, create=False)
    head = catalog.head("h")
    assert head is not None
    assert head.oid == make_oid(6)
    catalog.close()


def test_a_catalog_recovers_after_a_full_disk(small_disk: Path) -> None:
    catalog = SqliteCatalog(small_disk / "catalog.db")
    catalog.put_row("kind", "key", b"kept")
    with pytest.raises(Unavailable) as caught:
        for n in range(100):
            catalog.put_row("kind", f"big-{n}", b"x" * 50_000)
    assert caught.value.kind == "disk_full"
    kept = catalog.rows("kind")
    assert kept[-1].value == b"kept"
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    catalog.put_row("kind", "more", b"y" * 50_000)
    assert [row.key for row in catalog.rows("kind")] == sorted([r.key for r in kept] + ["more"])
    assert catalog.check() == []
    catalog.close()


def test_damage_in_the_middle_is_found(path: Path) -> None:
    catalog = SqliteCatalog(path)
    for n in range(300):
        catalog.put_row("kind", f"{n:04}", bytes(200))
    catalog.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        for page in range(8192, size, 4096):  # after the header and the schema
            file.seek(page)
            file.write(b"\xa5" * 512)
    catalog = SqliteCatalog(path)
    assert catalog.check() != []
    with pytest.raises(Corrupt) as caught:
        catalog.rows("kind")
    assert caught.value.kind == "catalog_damaged"
    catalog.close()


def test_check_reports_heads_that_disagree_with_the_operation_log(
    path: Path, catalog: SqliteCatalog
) -> None:
    catalog.move(
        [Move("moved", None, make_oid(1)), Move("short", None, make_oid(2))], verb="create"
    )
    other = apsw.Connection(str(path))
    other.execute("UPDATE heads SET oid = ? WHERE name = 'moved'", (make_oid(3),))
    other.execute("UPDATE heads SET oid = x'00' WHERE name = 'short'")
    other.close()
    assert catalog.check() == [
        "head short does not hold an object id",
        "head moved is not where its last operation put it",
        "head short is not where its last operation put it",
    ]


def test_time_is_asked_inside_the_transaction(path: Path) -> None:
    times = iter(range(1, 100))

    class Ticking:
        def now_ns(self) -> int:
            return next(times)

    clock: Clock = Ticking()
    catalog: Catalog = SqliteCatalog(path, clock)
    catalog.move([Move("a", None, make_oid(1)), Move("b", None, make_oid(1))], verb="create")
    catalog.move([Move("a", make_oid(1), make_oid(2))], verb="commit")
    assert [op.time for op in catalog.ops()] == [1, 1, 2]
    catalog.close()


@pytest.mark.parametrize("count", [2, 3, 16, 17])
def test_an_append_of_several_events_is_all_or_nothing(catalog: SqliteCatalog, count: int) -> None:
    line = "0" * 31 + "1"

    def row(first: int, last: int) -> list[EventRow]:
        return [EventRow(n, b"head %d" % n, b"salt", b"body " * n) for n in range(first, last + 1)]

    catalog.move([], verb="open", timelines=[Timeline(line)])
    catalog.append(line, row(1, 1))
    catalog.append(line, row(2, 1 + count))
    holes = [*row(2 + count, 2 + count), *row(4 + count, 4 + count)]
    late, early = row(3 + count, 9 + count), row(1 + count, 8 + count)
    for bad in (holes, late, early, row(1, 2), row(count, 2 * count)):
        with pytest.raises(Conflict) as caught:
            catalog.append(line, bad)
        assert (caught.value.kind, caught.value.details["found"]) == ("seq_taken", 1 + count)
    assert catalog.events(line) == row(1, 1 + count)


def test_concurrent_appends_of_several_events_are_not_interleaved(catalog: SqliteCatalog) -> None:
    line = "0" * 31 + "1"
    catalog.move([], verb="open", timelines=[Timeline(line)])
    catalog.append(line, [EventRow(1, b"head", b"salt", b"")])

    def write(number: int) -> int:
        done = 0
        while done < 20:
            seq, body = catalog.last_seq(line), b"%d" % number
            try:
                catalog.append(line, [EventRow(seq + n, b"h", b"s", body) for n in (1, 2, 3)])
                done += 1
            except Conflict as error:
                assert error.kind == "seq_taken"
        return done

    assert run_in_threads(write, [(number,) for number in range(4)]) == [20] * 4
    found = [event.body for event in catalog.events(line)][1:]
    assert len(found) == 3 * 80
    assert all(len(set(found[at : at + 3])) == 1 for at in range(0, len(found), 3))


def test_a_catalog_uses_the_system_clock_by_default(catalog: SqliteCatalog) -> None:
    before = SystemClock().now_ns()
    catalog.move([Move("h", None, make_oid(1))], verb="create")
    head = catalog.head("h")
    assert head is not None
    assert before <= head.time <= SystemClock().now_ns()


def test_long_bodies_are_compressed_and_damage_to_them_is_detected(tmp_path: Path) -> None:
    line, body = "0" * 32, b"what was said " * 30
    catalog = SqliteCatalog(tmp_path / "c.db")
    catalog.move([], verb="open", timelines=[Timeline(line)])
    catalog.append(line, [EventRow(1, b"head", b"salt", body)])
    db = apsw.Connection(str(tmp_path / "c.db"))
    assert db.execute("SELECT length(body) FROM events").get < len(body) / 2
    assert catalog.events(line)[0].body == body
    db.execute("UPDATE events SET body = substr(body, 1, length(body) - 2)")
    db.close()
    with pytest.raises(Corrupt):
        catalog.events(line)
    catalog.close()

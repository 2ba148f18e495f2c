"""A sweep of a store in PostgreSQL beside writers of other hosts: a cache directory of its own
makes a hub another host. What is committed is never lost."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest
from tests.fixtures import forked
from tests.fixtures.postgres import shared
from tests.fixtures.stores import OpenAs, host_environ
from tests.fixtures.waiting import WAIT, eventually

from ortet._util.failpoints import FAULT_VARIABLE
from ortet.errors import Conflict, Refused, Unavailable
from ortet.hub.hub import Hub
from ortet.objects.base import Kind
from ortet.objects.gc import sweep_remote

pytestmark = pytest.mark.usefixtures("no_grace")


def packs(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "bucket" / "packs").iterdir()}


def leave_garbage(hub: Hub) -> None:
    """What no head and no event leads to."""
    with hub.store.writing():
        for _ in range(3):
            hub.objects.put(Kind.BLOB, os.urandom(50_000))
        hub.objects.flush()


def commit(hub: Hub, name: str, words: str) -> None:
    with hub.session(name) as s:
        s.say("user", words)
        s.commit(words)


def test_garbage_goes_and_what_is_committed_stays(host: OpenAs, tmp_path: Path) -> None:
    one, two = host("one"), host("two")
    commit(one, "a", "kept")
    commit(two, "b", "kept too")
    leave_garbage(two)
    assert one.sweep(dry_run=True, min_garbage=0.0).removed == 3
    report = one.sweep(min_garbage=0.0)
    assert report.removed == 3
    assert report.bytes_freed > 100_000
    assert not any(name.endswith(".gone") for name in packs(tmp_path))
    commit(two, "b", "and on")
    with host("three").session("b") as s:
        assert [m.content for m in s.messages()] == ["kept too", "and on"]
    assert not host("four").verify().problems


def test_sweep_keeps_garbage_younger_than_the_grace_period(
    host: OpenAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_remote, "GRACE", 3600.0)
    hub = host("one")
    commit(hub, "a", "kept")
    leave_garbage(hub)
    for dry_run in (True, False):
        report = hub.sweep(min_garbage=0.0, dry_run=dry_run)
        assert (report.removed, report.packs_removed) == (0, 0)
        assert report.kept > 3  # and says so
        assert report.bytes_freed == 0 < report.bytes_after


def test_a_write_that_relies_on_what_was_before_a_sweep_is_refused(host: OpenAs) -> None:
    one, two = host("one"), host("two")
    leave_garbage(one)
    with pytest.raises(Conflict) as caught, two.store.writing():
        one.sweep(min_garbage=0.0)
        two.catalog.put_row("test", "key", b"names an object")
    assert caught.value.kind == "swept"
    with two.store.writing():
        two.catalog.put_row("test", "key", b"names an object")


def test_a_sweep_waits_for_writes_that_began_before(host: OpenAs, schema: str) -> None:
    """And who waits for it meanwhile reads the new epoch."""
    one, two = host("one"), host("two")
    leave_garbage(one)
    done = threading.Event()

    def sweep() -> None:
        one.sweep(min_garbage=0.0)
        done.set()

    before = two.catalog.epochs.refresh()  # type: ignore[attr-defined]
    options = f"-csearch_path={schema}"
    with (
        psycopg.connect(shared().url(), options=options) as writer,
        psycopg.connect(shared().url(), options=options, autocommit=True) as late,
        psycopg.connect(shared().url(), autocommit=True) as look,
    ):
        writer.execute("SELECT in_epoch(%s::bigint)", (before,))
        sweeper = threading.Thread(target=sweep)
        sweeper.start()
        until_waiting(look, schema, 1)
        assert not done.is_set()
        refused: list[str | None] = []

        def write() -> None:
            with pytest.raises(psycopg.Error) as caught:
                late.execute("SELECT in_epoch(%s::bigint)", (before,))
            refused.append(caught.value.sqlstate)

        waiter = threading.Thread(target=write)
        waiter.start()
        until_waiting(look, schema, 2)
        writer.commit()
        waiter.join(WAIT)
        sweeper.join(WAIT)
    assert done.is_set()
    assert refused == ["OR001"]


def until_waiting(look: psycopg.Connection, schema: str, count: int) -> None:
    """Wait until so many transactions wait for the table that all writes read."""
    asked = f"""SELECT count(*) FROM pg_locks
        WHERE relation = '"{schema}".floors'::regclass AND NOT granted"""

    def are_waiting() -> bool:
        row = look.execute(asked).fetchone()
        return row is not None and row[0] >= count

    eventually(are_waiting)


def test_second_sweep_is_refused_while_one_runs(host: OpenAs) -> None:
    one, two = host("one"), host("two")
    leave_garbage(one)

    def meanwhile(done: int, total: int) -> None:
        del done, total
        with pytest.raises(Unavailable) as caught:
            two.sweep()
        assert caught.value.kind == "sweep_busy"

    one.sweep(min_garbage=0.0, progress=meanwhile)
    two.sweep(min_garbage=0.0)


def test_a_sweep_that_was_taken_over_deletes_nothing(
    host: OpenAs, tmp_path: Path, schema: str
) -> None:
    hub = host("one")
    leave_garbage(hub)
    before = packs(tmp_path)

    def lose(done: int, total: int) -> None:
        del done, total
        with psycopg.connect(shared().url(), autocommit=True) as connection:
            connection.execute(f"DELETE FROM \"{schema}\".leases WHERE name = 'sweep'")

    with pytest.raises(Refused) as caught:
        hub.sweep(min_garbage=0.0, progress=lose)
    assert caught.value.kind == "lease_lost"
    assert before <= packs(tmp_path)


_SWEEPER = """
import sys, ortet
from ortet.objects.gc import sweep_remote
sweep_remote.GRACE = -60.0
ortet.open(sys.argv[1]).sweep(min_garbage=0.0)
"""


@pytest.mark.parametrize("point", ["sweep.after-marks", "sweep.after-epoch", "sweep.after-delete"])
def test_a_killed_sweep_is_ended_by_the_next(
    host: OpenAs, tmp_path: Path, url: str, point: str
) -> None:
    hub = host("one")
    commit(hub, "a", "kept")
    leave_garbage(hub)
    done = forked.run(
        [sys.executable, "-c", _SWEEPER, url],
        env={**host_environ(tmp_path, "one"), FAULT_VARIABLE: f"{point}:kill"},
        timeout=WAIT,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert any(name.endswith(".gone") for name in packs(tmp_path))
    commit(host("two"), "a", "meanwhile")
    hub.sweep(min_garbage=0.0)  # of the same host, which sees that the other is dead
    assert not any(name.endswith(".gone") for name in packs(tmp_path))
    fresh = host("three")
    assert not fresh.verify().problems
    with fresh.session("a") as s:
        assert [m.content for m in s.messages()] == ["kept", "meanwhile"]


def test_a_commit_that_met_a_sweep_is_repeated(
    host: OpenAs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of files, one of which was found in a pack that goes, and of a mind."""
    one, two = host("one"), host("two")
    data = os.urandom(50_000)
    with two.store.writing():
        two.objects.put(Kind.BLOB, data)
        two.objects.flush()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "file").write_bytes(data)
    swept: list[int] = []

    def sweeping(flush: Callable[..., None], **given: bool) -> None:
        flush(**given)
        if not swept:
            swept.append(one.sweep(min_garbage=0.0).packs_removed)

    monkeypatch.setattr(two.objects, "flush", partial(sweeping, two.objects.flush))
    with two.workspace(tmp_path / "work", name="w") as workspace:
        made = workspace.commit("met a sweep")
    assert swept.pop() > 0
    with two.session("s") as s:
        s.say("user", "hello")
        s.commit("met another")
    assert swept.pop() > 0
    fresh = host("three")
    assert not fresh.verify().problems
    fresh.restore(made.oid, to=tmp_path / "out")
    assert (tmp_path / "out" / "file").read_bytes() == data


def test_nothing_is_lost_that_is_committed_while_sweeps_run(host: OpenAs, tmp_path: Path) -> None:
    one, two = host("one"), host("two")
    work, begun, over = tmp_path / "work", threading.Event(), threading.Event()
    work.mkdir()
    blobs = [os.urandom(20_000) for _ in range(4)]
    said: list[str] = []
    failed: list[BaseException] = []

    def write() -> None:
        try:
            with two.session("s") as s, two.workspace(work, name="w") as workspace:
                while not over.is_set() or len(said) < 4:
                    turn = len(said)
                    with two.store.writing():  # found again later, unless a sweep has taken it
                        two.objects.put(Kind.BLOB, blobs[(turn + 2) % 4])
                        two.objects.flush()
                    (work / f"file{turn % 3}").write_bytes(blobs[turn % 4])
                    s.say("user", str(turn))
                    s.commit(str(turn))
                    workspace.commit(str(turn))
                    said.append(str(turn))
                    begun.set()
        except BaseException as error:
            failed.append(error)
            begun.set()

    writer = threading.Thread(target=write)
    writer.start()
    begun.wait(WAIT)
    try:
        removed = sum(one.sweep(min_garbage=0.0, expire_ns=0).packs_removed for _ in range(6))
    finally:
        over.set()
        writer.join(WAIT)
    assert not failed, failed
    assert not writer.is_alive()
    assert removed > 0
    fresh = host("three")
    assert not fresh.verify().problems
    with fresh.session("s") as s:
        assert [m.content for m in s.messages()] == said
    fresh.restore("w", to=tmp_path / "out")
    for path in work.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()

"""Writers share, a sweep excludes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.waiting import eventually, is_waited_for

from ortet.errors import Invalid, Unavailable
from ortet.objects.base import Kind
from ortet.objects.gc.lock import FileFence, SweepLock
from ortet.objects.store import PackedObjectStore

Open = Callable[..., PackedObjectStore]


def test_writers_share_and_nest(open_store: Open) -> None:
    first, second = open_store(), open_store()
    with first.writing() as outer, second.writing(), first.writing() as inner:
        assert outer == inner == 0


def test_a_sweep_waits_for_writers_and_gives_up(open_store: Open) -> None:
    first, second = open_store(), open_store()
    with (
        first.writing(),
        pytest.raises(Unavailable) as caught,
        second.sweep_lock.exclusive(timeout=0.01),
    ):
        pass
    assert caught.value.kind == "writer_busy"
    with second.sweep_lock.exclusive(timeout=0.01):
        pass
    with first.writing():
        pass


def test_writers_of_the_same_handle_keep_a_sweep_out_too(store: PackedObjectStore) -> None:
    inside, leave = threading.Event(), threading.Event()

    def write() -> None:
        with store.writing():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=write)
    thread.start()
    inside.wait()
    with pytest.raises(Unavailable), store.sweep_lock.exclusive(timeout=0.0):
        pass
    leave.set()
    thread.join()
    with store.sweep_lock.exclusive(timeout=0.0):
        pass


def test_writers_wait_for_a_sweep(open_store: Open, root: Path) -> None:
    first, second = open_store(), open_store()
    order: list[str] = []

    def write() -> None:
        with second.writing():
            order.append("writer")

    thread = threading.Thread(target=write)
    with first.sweep_lock.exclusive(timeout=0.0):
        thread.start()
        eventually(lambda: is_waited_for(root / "local" / "gc.gate"))
        order.append("sweep")
    thread.join()
    assert order == ["sweep", "writer"]


def test_a_sweep_inside_a_commit_is_refused_not_a_deadlock(store: PackedObjectStore) -> None:
    with store.writing(), pytest.raises(Invalid), store.sweep_lock.exclusive(timeout=60.0):
        pass


def test_the_epoch_is_seen_by_every_handle(open_store: Open, root: Path) -> None:
    first, second = open_store(), open_store()
    with first.sweep_lock.exclusive(timeout=0.0):
        assert first.sweep_lock.raise_epoch() == 1
    with second.writing() as epoch:
        assert epoch == 1
    assert second.epoch == 1
    assert open_store().epoch == 1
    for _ in range(12):
        first.sweep_lock.raise_epoch()
    assert SweepLock(FileFence(root / "local")).epoch() == 13


def test_a_new_epoch_drops_the_remembered_packs(open_store: Open, root: Path) -> None:
    first, second = open_store(), open_store()
    oid = first.put(Kind.BLOB, b"in a pack that goes")
    first.writer.seal_now()
    assert second.has(oid)
    [pack] = (root / "bucket/packs").iterdir()
    pack.unlink()
    with first.sweep_lock.exclusive(timeout=0.0):
        first.sweep_lock.raise_epoch()
    with second.writing():
        assert not second.has(oid)
        second.put(Kind.BLOB, b"in a pack that goes")
        second.flush()
    assert open_store().get(oid) == b"in a pack that goes"


def test_one_sweep_at_a_time_and_none_beside_a_verification(open_store: Open) -> None:
    first, second = open_store(), open_store()
    with (
        first.sweep_lock.hold_gc_lock(exclusive=False),
        second.sweep_lock.hold_gc_lock(exclusive=False),
    ):
        with pytest.raises(Unavailable) as caught, first.sweep_lock.hold_gc_lock(exclusive=True):
            pass
        assert caught.value.kind == "sweep_busy"
    with (
        first.sweep_lock.hold_gc_lock(exclusive=True),
        pytest.raises(Unavailable),
        second.sweep_lock.hold_gc_lock(exclusive=False),
    ):
        pass


def test_a_damaged_lock_file_gives_an_epoch_and_heals_at_the_next_sweep(tmp_path: Path) -> None:
    fence = FileFence(tmp_path)
    fence.raise_epoch()
    before = fence.epoch()
    file = tmp_path / "gc.lock"
    data = bytearray(file.read_bytes())
    data[1] ^= 4  # in the padding: no number any more
    file.write_bytes(data)
    damaged = fence.epoch()
    assert damaged != before
    assert fence.raise_epoch() == fence.epoch() > before

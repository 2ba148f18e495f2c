"""The writing half: nothing put is missing from a flush that succeeds, and memory stays bounded."""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures import forked

from ortet.errors import Unavailable
from ortet.objects.base import Kind
from ortet.objects.store import PackedObjectStore

Open = Callable[..., PackedObjectStore]


def test_each_flush_with_new_objects_syncs_once(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    calls: list[str] = []
    real_sync, real_write = os.fdatasync, os.pwrite

    def sync(fd: int) -> None:
        calls.append("sync")
        real_sync(fd)

    def write(fd: int, data: bytes, offset: int) -> int:
        calls.append("write")
        return real_write(fd, data, offset)

    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(os, "pwrite", write)
    for turn in range(12):
        for number in range(8):
            store.put(Kind.TREE, b"%d %d" % (turn, number))
        store.flush()
        store.flush()
    assert calls == ["write", "sync"] * 12


def test_a_failure_in_a_thread_reaches_the_next_call(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    dice = random.Random(1)
    contents = [dice.randbytes(100_000) for _ in range(60)]
    real = os.pwrite
    failing = threading.Event()
    failing.set()

    def full(fd: int, data: bytes, offset: int) -> int:
        if failing.is_set():
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    failures = 0
    for data in contents:
        try:
            store.put(Kind.BLOB, data)
        except Unavailable:
            failures += 1
    with pytest.raises(Unavailable):
        store.flush()
    for data in contents:
        assert store.get(store.hasher.oid(data)) == data
    failing.clear()
    store.flush()
    assert store.writer.pending == {}
    other = open_store()
    for data in contents:
        assert other.get(other.hasher.oid(data)) == data


LOAD = """
import resource, sys
from pathlib import Path
from ortet.backends.local.bucket import FileBucket
from ortet._util.codec import Hasher
from ortet.ids import SystemClock
from ortet.objects.base import Kind
from ortet.objects.store import PackedObjectStore
root = Path(sys.argv[1])
store = PackedObjectStore(root, FileBucket(root / "bucket"), hasher=Hasher(), clock=SystemClock())
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
words = b"some words that compress well and some that do not "
for number in range(3000):
    store.put(Kind.BLOB, b"%d" % number + words * 2500)
store.flush()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)
"""


def test_a_large_load_needs_little_memory(root: Path) -> None:
    """375 MB through less than 200 MB: frames are written as they come."""
    done = forked.run(
        [sys.executable, "-c", LOAD, str(root)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 200 * 1024


def test_contents_that_shrink_well_do_not_fill_the_cache(open_store: Open) -> None:
    store = open_store()
    for number in range(64):
        store.put(Kind.BLOB, b"%d" % number * 60_000)
    store.flush()
    assert store.cache._bytes < 1 << 20

"""Sealing: small raw frames become few solid ones, and nothing else changes."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ortet.backends.local import bucket
from ortet.errors import Unavailable
from ortet.ids import Oid
from ortet.objects import frame, seal
from ortet.objects.base import Kind, ObjectRef, ReferenceParser
from ortet.objects.frame import FrameBatches
from ortet.objects.gc.sweep import Roots, sweep
from ortet.objects.pack import list_packs
from ortet.objects.store import PackedObjectStore

Open = Callable[..., PackedObjectStore]
Commit = Callable[[PackedObjectStore, str, Sequence[bytes]], Oid]
PAGE = random.Random(1).randbytes(3000)
VERSIONS = [PAGE[:at] + b"changed" + PAGE[at:] for at in range(0, 3000, 10)]


def many_commits(store: PackedObjectStore) -> None:
    for data in VERSIONS:
        store.put(Kind.TREE, data)
        store.flush()


def roots(*oids: Oid) -> Roots:
    return lambda: [ObjectRef(oid, Kind.COMMIT) for oid in oids]


def check(store: PackedObjectStore) -> None:
    for data in VERSIONS:
        assert store.get(store.hasher.oid(data)) == data


def test_similar_versions_are_compressed_together_when_sealed(open_store: Open, root: Path) -> None:
    store = open_store()
    many_commits(store)
    [tail] = store.pack_set.own_tails
    raw = tail.end
    assert raw > sum(map(len, VERSIONS))
    store.writer.seal_now()
    [size] = list_packs(store.bucket).values()
    assert size < raw / 20
    assert not list((root / "local/tails").iterdir())
    check(store)
    check(open_store())


def test_a_seal_copies_full_frames_unchanged(open_store: Open) -> None:
    store = open_store()
    noise = [random.Random(number).randbytes(100_000) for number in range(60)]
    for data in noise:
        store.put(Kind.BLOB, data)
    store.flush()
    [tail] = store.pack_set.own_tails
    inode = os.stat(tail.path).st_ino
    store.writer.seal_now()
    [pack] = store.pack_set.packs
    path = store.bucket.local_path(f"packs/{pack.id}.pack")
    assert path is not None
    assert path.stat().st_ino == inode
    assert all(store.get(store.hasher.oid(data)) == data for data in noise)


def test_blocks_of_large_files_are_sealed_among_small_objects(open_store: Open) -> None:
    store = open_store()
    blocks = [random.Random(number).randbytes(128 * 1024) for number in range(3)]
    for data in (*VERSIONS[:5], *blocks):
        store.put(Kind.BLOB, data)
        store.flush()
    store.writer.seal_now()
    again = open_store()
    assert all(again.get(again.hasher.oid(data)) == data for data in (*VERSIONS[:5], *blocks))


def test_a_seal_of_an_incomplete_tail_makes_no_pack(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    many_commits(store)
    monkeypatch.setattr(FrameBatches, "drain", lambda *_: [])
    store.writer.seal_now()
    [size] = list_packs(store.bucket).values()
    assert size > sum(map(len, VERSIONS)), "the tail as it was"
    check(store)
    check(open_store())


def test_an_object_written_twice_is_kept_once(open_store: Open) -> None:
    store = open_store()
    tail = store.pack_set.acquire_tail()
    item = (store.hasher.oid(PAGE), int(Kind.TREE), PAGE)
    for _ in range(5):
        tail.append(frame.build([item], store.hasher.key_id, None), [item])
    store.pack_set.seal(tail)
    [pack] = store.pack_set.packs
    assert len(pack) == 1
    assert store.get(item[0]) == PAGE


def test_a_damaged_frame_does_not_stop_a_seal(open_store: Open) -> None:
    store = open_store()
    many_commits(store)
    [tail] = store.pack_set.own_tails
    spot = tail.find(store.hasher.oid(VERSIONS[7]))
    assert spot is not None
    with open(tail.path, "r+b") as file:
        file.seek(spot[1] + frame.HEADER_BYTES + 200)
        file.write(b"damage")
    store.writer.seal_now()
    other = open_store()
    assert other.get(other.hasher.oid(VERSIONS[6])) == VERSIONS[6]
    assert other.get(other.hasher.oid(VERSIONS[8])) == VERSIONS[8]
    assert tail.end in list_packs(other.bucket).values()


def test_readers_of_the_tail_go_on(open_store: Open) -> None:
    store, other = open_store(), open_store()
    many_commits(store)
    check(other)
    spots = [other.pack_set.find(other.hasher.oid(data)) for data in VERSIONS]
    store.writer.seal_now()
    for spot, data in zip(spots, VERSIONS, strict=True):
        assert spot is not None
        source, offset, start, length, _ = spot
        assert source.load(offset)[start : start + length] == data
    check(other)
    check(store)


@pytest.mark.parametrize("put", [0, 1])
def test_repeated_lookups_of_absent_objects_stay_correct_after_a_put(
    open_store: Open, put: int
) -> None:
    store = open_store()
    many_commits(store)
    store.writer.seal_now()
    new = [random.Random(number).randbytes(40) for number in range(3000)]
    assert not any(store.has(store.hasher.oid(data)) for data in new)
    if put:
        for data in new:
            store.put(Kind.BLOB, data)
        store.writer.seal_now()
        assert all(store.has(store.hasher.oid(data)) for data in new)
    check(store)


def test_a_pack_swept_before_its_tail_is_released_is_not_used(
    open_store: Open, walk: ReferenceParser, commit: Commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = open_store(), open_store()
    lost = random.Random(3).randbytes(70_000)
    store.put(Kind.BLOB, lost)
    store.flush()
    kept = commit(other, "kept", [b"something else"])

    def sweep_now(point: str) -> None:
        if point == "seal.after-put":
            sweep(other, roots(kept), walk, min_garbage=0.0)

    monkeypatch.setattr(seal, "failpoint", sweep_now)
    store.writer.seal_now()
    monkeypatch.undo()
    with store.writing():
        oid = store.put(Kind.BLOB, lost)
        store.flush()
    assert open_store().get(oid) == lost


def test_a_tail_whose_seal_failed_late_is_not_used_after_a_sweep(
    open_store: Open, walk: ReferenceParser, commit: Commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = open_store(), open_store()
    lost = random.Random(3).randbytes(70_000)
    store.put(Kind.BLOB, lost)
    store.flush()
    kept = commit(other, "kept", [b"something else"])

    def fail(point: str) -> None:
        if point == "seal.after-put":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(seal, "failpoint", fail)
    store.writer.seal_now()
    assert store.pack_set.own_tails
    monkeypatch.undo()
    sweep(other, roots(kept), walk, min_garbage=0.0)
    with store.writing():
        oid = store.put(Kind.BLOB, lost)
        store.flush()
    assert open_store().get(oid) == lost


def test_a_published_pack_is_never_written_to(
    open_store: Open, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    many_commits(store)
    real, left = bucket.sync_directory, [1]

    def fail_once(path: Path) -> None:
        if path.name == "packs" and left:
            left.pop()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(path)

    monkeypatch.setattr(bucket, "sync_directory", fail_once)
    with pytest.raises(Unavailable):
        store.pack_set.seal(store.pack_set.own_tails[0])
    assert list_packs(store.bucket) == {}
    check(open_store())
    store.writer.seal_now()
    assert len(list_packs(store.bucket)) == 1
    assert not list((root / "local/tails").iterdir())
    check(open_store())


def test_a_failed_seal_leaves_nothing_behind(
    open_store: Open, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    many_commits(store)
    real = os.fsync

    def full(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".part") and "index" in os.readlink(
            f"/proc/self/fd/{fd}"
        ):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable):
        store.pack_set.seal(store.pack_set.own_tails[0])
    monkeypatch.undo()
    assert [path.suffix for path in (root / "local/tails").iterdir()] == [".tail"]
    assert not list((root / "local/index").iterdir())
    check(open_store())


def test_a_sweep_removes_temporary_files_of_killed_seals(
    open_store: Open, root: Path, walk: ReferenceParser, commit: Commit
) -> None:
    store = open_store()
    kept = commit(store, "kept", [b"something"])
    orphan, old = root / "local/tails/gone.pack.part", root / "local/index/x.idx.1.part"
    new = root / "local/index/y.idx.2.part"
    for path in (orphan, old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    sweep(store, roots(kept), walk)
    assert [path.exists() for path in (orphan, old, new)] == [False, False, True]

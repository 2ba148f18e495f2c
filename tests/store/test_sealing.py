"""Sealing: small raw frames become few solid ones, and nothing else changes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ortet.store import frame
from ortet.store.abc import Kind
from ortet.store.objects import LocalObjects
from ortet.store.packs import list_packs

Open = Callable[..., LocalObjects]
PAGE = random.Random(1).randbytes(3000)
VERSIONS = [PAGE[:at] + b"changed" + PAGE[at:] for at in range(0, 3000, 10)]


def many_commits(store: LocalObjects) -> None:
    for data in VERSIONS:
        store.put(Kind.TREE, data)
        store.flush()


def check(store: LocalObjects) -> None:
    for data in VERSIONS:
        assert store.get(store.hasher.oid(data)) == data


def test_versions_of_a_page_take_little_room(open_store: Open, root: Path) -> None:
    store = open_store()
    many_commits(store)
    [tail] = store.shelf.mine
    raw = tail.end
    assert raw > sum(map(len, VERSIONS))
    store.writer.seal_now()
    [size] = list_packs(store.bucket).values()
    assert size < raw / 20
    assert not list((root / "local/tails").iterdir())
    check(store)
    check(open_store())


def test_frames_that_are_full_are_taken_as_they_are(open_store: Open) -> None:
    store = open_store()
    noise = [random.Random(number).randbytes(100_000) for number in range(60)]
    for data in noise:
        store.put(Kind.BLOB, data)
    store.flush()
    [tail] = store.shelf.mine
    inode = os.stat(tail.path).st_ino
    store.writer.seal_now()
    [pack] = store.shelf.packs
    path = store.bucket.local_path(f"packs/{pack.id}.pack")
    assert path is not None
    assert path.stat().st_ino == inode
    assert all(store.get(store.hasher.oid(data)) == data for data in noise)


def test_an_object_written_twice_is_kept_once(open_store: Open) -> None:
    store = open_store()
    tail = store.shelf.take_tail()
    item = (store.hasher.oid(PAGE), int(Kind.TREE), PAGE)
    for _ in range(5):
        tail.append(frame.build([item], store.hasher.key_id, None), [item])
    store.shelf.seal(tail)
    [pack] = store.shelf.packs
    assert len(pack) == 1
    assert store.get(item[0]) == PAGE


def test_a_damaged_frame_does_not_stop_a_seal(open_store: Open) -> None:
    store = open_store()
    many_commits(store)
    [tail] = store.shelf.mine
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
    spots = [other.shelf.find(other.hasher.oid(data)) for data in VERSIONS]
    store.writer.seal_now()
    for spot, data in zip(spots, VERSIONS, strict=True):
        assert spot is not None
        source, offset, start, length, _ = spot
        assert source.load(offset)[start : start + length] == data
    check(other)
    check(store)


@pytest.mark.parametrize("put", [0, 1])
def test_what_is_asked_for_again_and_again_is_said_to_be_absent(open_store: Open, put: int) -> None:
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

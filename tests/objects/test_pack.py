"""Sealed packs: found by index, and without one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ortet._util.codec import Hasher
from ortet.backends.local.memory import MemoryBucket
from ortet.errors import Corrupt, NotFound
from ortet.ids import SystemClock
from ortet.objects.base import Kind
from ortet.objects.store import PackedObjectStore

Open = Callable[..., PackedObjectStore]
CONTENTS = [b"%d" % n + random.Random(n).randbytes(12_000) for n in range(300)]  # 7 frames


def sealed(open_store: Open) -> None:
    store = open_store()
    for number, data in enumerate(CONTENTS):
        store.put(Kind.BLOB, data)
        if number % 30 == 0:
            store.flush()
    store.writer.seal_now()
    store.close()


def only(path: Path) -> Path:
    [found] = path.iterdir()
    return found


def check(store: PackedObjectStore) -> None:
    for data in CONTENTS:
        assert store.get(store.hasher.oid(data)) == data


def test_a_missing_index_is_made_again(open_store: Open, root: Path) -> None:
    sealed(open_store)
    index = only(root / "local/index")
    before = index.read_bytes()
    index.unlink()
    check(open_store())
    assert index.read_bytes() == before


def test_a_damaged_index_is_made_again_and_never_believed(open_store: Open, root: Path) -> None:
    sealed(open_store)
    index = only(root / "local/index")
    before = index.read_bytes()
    dice = random.Random(2)
    for _ in range(60):
        broken = bytearray(before)
        broken[dice.randrange(len(before))] ^= 1 << dice.randrange(8)
        index.write_bytes(broken)
        store = open_store()
        check(store)
        store.close()
        index.write_bytes(before[: dice.randrange(len(before))])
        store = open_store()
        check(store)
        store.close()
        assert index.read_bytes() == before


def test_a_damaged_frame_costs_its_own_objects_only(open_store: Open, root: Path) -> None:
    sealed(open_store)
    pack = only(root / "bucket/packs")
    whole = bytearray(pack.read_bytes())
    whole[len(whole) // 2] ^= 16
    pack.write_bytes(whole)
    only(root / "local/index").unlink()
    store = open_store()
    lost = 0
    for data in CONTENTS:
        try:
            assert store.get(store.hasher.oid(data)) == data
        except (Corrupt, NotFound):
            lost += 1
    assert 0 < lost < 50


def test_a_cut_pack_is_noticed(open_store: Open, root: Path) -> None:
    sealed(open_store)
    pack = only(root / "bucket/packs")
    pack.write_bytes(pack.read_bytes()[:-10])
    store = open_store()
    found = 0
    for data in CONTENTS:
        try:
            assert store.get(store.hasher.oid(data)) == data
            found += 1
        except (Corrupt, NotFound):
            pass
    assert 200 < found < 300


def test_a_pack_that_vanishes_is_not_found(open_store: Open, root: Path) -> None:
    sealed(open_store)
    store = open_store()
    only(root / "bucket/packs").unlink()
    with pytest.raises(NotFound) as caught:
        store.get(store.hasher.oid(CONTENTS[0]))
    assert caught.value.kind == "no_object"


def test_packs_are_read_from_a_bucket_without_local_files(root: Path) -> None:
    bucket = MemoryBucket()
    store = PackedObjectStore(root, bucket, hasher=Hasher(), clock=SystemClock())
    for data in CONTENTS:
        store.put(Kind.BLOB, data)
    store.writer.seal_now()
    check(store)
    store.close()
    for index in (root / "local/index").iterdir():
        index.unlink()
    again = PackedObjectStore(root, bucket, hasher=Hasher(), clock=SystemClock())
    check(again)
    assert again.stats().tails == 0
    again.close()

"""Many packs are searched through few tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ortet.errors import NotFound
from ortet.ids import Oid
from ortet.objects.base import Kind
from ortet.objects.group import MERGE_MIN_TABLES, PackGroup
from ortet.objects.pack import LocalPackFile, Pack
from ortet.objects.store import PackedObjectStore

Open = Callable[..., PackedObjectStore]


def content(number: int, turn: int) -> bytes:
    return b"object %d of pack %d" % (number, turn)


def packs(store: PackedObjectStore, count: int, first: int = 0) -> None:
    for turn in range(first, first + count):
        for number in range(20):
            store.put(Kind.BLOB, content(number, turn))
        store.writer.seal_now()
        store.pack_set.merge_tables()


def check(store: PackedObjectStore, count: int) -> None:
    for turn in range(count):
        for number in range(20):
            data = content(number, turn)
            assert store.get(store.hasher.oid(data)) == data
    assert not store.has(store.hasher.oid(b"never put"))


def test_the_number_of_tables_stays_small(open_store: Open) -> None:
    store = open_store()
    packs(store, 60)
    assert len(store.pack_set.packs) == 60
    assert len(store.pack_set.tables) < MERGE_MIN_TABLES
    assert any(isinstance(table, PackGroup) for table in store.pack_set.tables)
    for handle in (store, open_store()):
        check(handle, 60)
        assert len(handle.pack_set.tables) < MERGE_MIN_TABLES
    assert store.stats().objects == 60 * 20
    oid = store.hasher.oid(content(3, 2))
    assert open_store().find_by_prefix(oid.hex()[:9]) == [(oid, Kind.BLOB)]


def test_objects_of_deleted_packs_are_not_found_through_a_group(
    open_store: Open, root: Path
) -> None:
    store = open_store()
    packs(store, 20)
    [group] = store.pack_set.groups()
    gone = next(pack for pack in group.packs if pack is not None)
    lost = [oid for oid, _ in gone.locations()]
    (root / "bucket/packs" / f"{gone.id}.pack").unlink()
    for handle in (store, open_store()):
        handle.pack_set.refresh()
        for oid in lost:
            assert not handle.has(oid)
            with pytest.raises(NotFound):
                handle.get(oid)
            assert handle.put(Kind.BLOB, b"x") != oid


def test_an_object_in_two_packs_is_found_when_one_pack_is_deleted(
    open_store: Open, root: Path
) -> None:
    first, second = open_store(), open_store()
    for handle in (first, second):
        handle.put(Kind.BLOB, b"twice")
    first.writer.seal_now()
    second.writer.seal_now()
    first.pack_set.refresh()
    packs(first, MERGE_MIN_TABLES)
    oid = first.hasher.oid(b"twice")
    holders = {spot[0].id for spot in first.pack_set.copies(oid)}
    assert len(holders) == 2
    assert any(
        holders <= {pack.id for pack in group.packs if pack} for group in first.pack_set.groups()
    )
    for id_ in sorted(holders):
        path = root / "bucket/packs" / f"{id_}.pack"
        path.rename(root / "aside")
        assert open_store().get(oid) == b"twice"
        (root / "aside").rename(path)


def test_a_damaged_group_is_dropped(open_store: Open, root: Path) -> None:
    store = open_store()
    packs(store, 20)
    store.close()
    [path] = (root / "local/index").glob("*.grp")
    whole = path.read_bytes()
    for at in (2, 40, 1500, 3200, len(whole) - 9):
        broken = bytearray(whole)
        broken[at] ^= 2
        path.write_bytes(broken)
        handle = open_store()
        check(handle, 20)
        handle.close()
    path.write_bytes(whole[:500])
    check(open_store(), 20)


def test_covered_packs_hold_no_descriptors(open_store: Open) -> None:
    store = open_store()
    packs(store, 30)
    store.pack_set.refresh()
    covered = {pack.id for group in store.pack_set.groups() for pack in group.packs if pack}
    assert len(covered) >= 12
    resting = [pack for pack in store.pack_set.packs if pack.id in covered]
    for pack in resting:
        assert isinstance(pack, Pack)
        assert isinstance(pack.file, LocalPackFile)
        assert pack._index is None
        assert pack.file._file is None
    assert not covered & {table.id for table in store.pack_set.tables if isinstance(table, Pack)}


def test_oids_of_one_slot_keep_their_order(open_store: Open) -> None:
    store = open_store()
    packs(store, 40)
    found = [oid for oid, _ in store.find_by_prefix("a")]
    assert found == sorted(found)
    assert all(isinstance(oid, bytes) and len(Oid(oid)) == 32 for oid in found)

"""Which tails and packs a handle sees, and which tail it writes to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ortet._util.codec import Hasher
from ortet.backends.local.bucket import FileBucket
from ortet.errors import Unavailable
from ortet.objects.base import Kind
from ortet.objects.store import PackedObjectStore

Open = Callable[..., PackedObjectStore]


def test_an_unlocked_tail_is_adopted_and_a_locked_one_is_not(open_store: Open, root: Path) -> None:
    first, second = open_store(), open_store()
    first.put(Kind.BLOB, b"first")
    first.flush()
    held = first.pack_set.own_tails[0].id
    second.put(Kind.BLOB, b"second")
    second.flush()
    assert second.pack_set.own_tails[0].id != held
    first.close()
    third = open_store()
    third.put(Kind.BLOB, b"third")
    third.flush()
    assert third.pack_set.own_tails[0].id == held
    assert len(list((root / "local/tails").iterdir())) == 2


def test_names_are_unique_with_a_repeating_clock_and_random_source(root: Path) -> None:
    class Stopped:
        def now_ns(self) -> int:
            return 0

    def opened() -> PackedObjectStore:
        return PackedObjectStore(
            root,
            FileBucket(root / "bucket"),
            hasher=Hasher(),
            clock=Stopped(),
            random=bytes,
        )

    oids = []
    for turn in range(4):
        first, second = opened(), opened()
        for name, store in ((b"a", first), (b"b", second)):
            oids.append(store.put(Kind.BLOB, b"%s %d" % (name, turn)))
            store.flush()
        first.writer.seal_now()
        for store in (first, second):
            store.close()
    last = opened()
    assert len({last.get(oid) for oid in oids}) == 8
    last.close()


def test_a_tail_sealed_by_its_owner_is_read_as_a_pack(open_store: Open) -> None:
    first, second = open_store(), open_store()
    oid = first.put(Kind.BLOB, b"moves")
    first.flush()
    assert second.get(oid) == b"moves"
    assert len(second.pack_set.foreign_tails) == 1
    first.writer.seal_now()
    assert second.get(oid) == b"moves"
    second.pack_set.refresh()
    assert (len(second.pack_set.foreign_tails), len(second.pack_set.packs)) == (0, 1)
    assert second.get(oid) == b"moves"


def test_an_object_in_a_tail_of_another_writer_is_stored_again(open_store: Open) -> None:
    first, second = open_store(), open_store()
    oid = first.put(Kind.BLOB, b"in a tail")
    first.flush()
    second.pack_set.refresh()
    assert first.pack_set.find_durable(oid) is not None
    assert second.pack_set.find_durable(oid) is None
    assert second.pack_set.find_foreign_tail(oid) is not None
    assert second.pack_set.find(oid) is not None
    # so a put is not left out for the sake of a tail that its writer may not have synced
    second.put(Kind.BLOB, b"in a tail")
    second.flush()
    assert second.pack_set.find_durable(oid) is not None


def test_a_tail_that_can_not_be_read_says_which(open_store: Open, root: Path) -> None:
    store = open_store()
    (root / "local/tails/odd.tail").mkdir()
    store.put(Kind.BLOB, b"it does not keep a writer from its own")
    store.flush()
    with pytest.raises(Unavailable, match="odd"):
        open_store()


def test_a_seal_in_the_background_changes_nothing_for_readers(open_store: Open) -> None:
    store = open_store(seal_bytes=20_000)
    oids = []
    for turn in range(200):
        oids.append(store.put(Kind.BLOB, b"%05d" % turn * 200))
        store.flush()
        assert store.get(oids[turn // 2])
    assert len({store.get(oid) for oid in oids}) == 200


def test_many_handles_of_a_process_follow_a_tail_with_one_descriptor(
    open_store: Open, root: Path
) -> None:
    writer, *readers = [open_store() for _ in range(6)]
    oid = writer.put(Kind.BLOB, b"seen by all")
    writer.flush()
    assert [reader.get(oid) for reader in readers] == [b"seen by all"] * 5
    (tail,) = (root / "local/tails").iterdir()
    open_here = [Path(f"/proc/self/fd/{fd}").resolve() for fd in os.listdir("/proc/self/fd")]
    assert open_here.count(tail.resolve()) == 2  # the writer's own, and one for the others
    late = writer.put(Kind.BLOB, b"and what came behind it")
    writer.flush()
    assert {reader.get(late) for reader in readers} == {b"and what came behind it"}

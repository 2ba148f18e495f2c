"""What can be reached, by which way, and what stands in the way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ortet._util.codec import encode
from ortet.errors import Corrupt, OrtetError
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectRef, ReferenceParser
from ortet.objects.gc.reachability import ReachableSet
from ortet.objects.store import PackedObjectStore

Open = Callable[..., PackedObjectStore]


def tree(
    store: PackedObjectStore, label: str, *links: tuple[Kind, Oid], kind: Kind = Kind.TREE
) -> Oid:
    return store.put(kind, encode((label, [(int(k), oid) for k, oid in links])))


def test_marking_a_long_history_does_not_recurse(
    store: PackedObjectStore, walk: ReferenceParser
) -> None:
    head = tree(store, "first", kind=Kind.COMMIT)
    for number in range(5000):
        head = tree(store, f"{number}", (Kind.COMMIT, head), kind=Kind.COMMIT)
    marks = ReachableSet(store, walk)
    ticks: list[int] = []
    marks.add([ObjectRef(head, Kind.COMMIT)], on_progress=ticks.append)
    assert (len(marks.oids), marks.commits) == (5001, 5001)
    assert ticks[-1] == 5001


def test_shared_parts_are_followed_once(store: PackedObjectStore, walk: ReferenceParser) -> None:
    calls: list[bytes] = []

    def counted(kind: Kind, data: bytes) -> list[ObjectRef]:
        calls.append(data)
        return list(walk(kind, data))

    blob = store.put(Kind.BLOB, b"leaf")
    shared = tree(store, "shared", (Kind.BLOB, blob))
    tops = [tree(store, f"{n}", (Kind.TREE, shared)) for n in range(10)]
    marks = ReachableSet(store, counted)
    marks.add(ObjectRef(top, Kind.TREE) for top in tops)
    marks.add(ObjectRef(top, Kind.TREE) for top in tops)
    assert len(calls) == 11
    assert len(marks.oids) == 12


def test_newly_reached_holds_only_newly_marked_objects(
    store: PackedObjectStore, walk: ReferenceParser
) -> None:
    marks = ReachableSet(store, walk)
    first, second = tree(store, "1"), tree(store, "2")
    marks.add([ObjectRef(first, Kind.TREE)])
    marks.newly_reached.clear()
    marks.add([ObjectRef(first, Kind.TREE), ObjectRef(second, Kind.TREE)])
    assert marks.newly_reached == {second}


def test_missing_or_wrong_objects_are_reported_with_their_parent(
    store: PackedObjectStore, walk: ReferenceParser
) -> None:
    gone = Oid(bytes(32))
    liar = store.put(Kind.BLOB, b"no tree")
    good = store.put(Kind.BLOB, b"good")
    top = tree(store, "top", (Kind.TREE, gone), (Kind.TREE, liar), (Kind.BLOB, good))
    told: list[tuple[Oid, Oid | None]] = []
    leaves: list[Oid] = []

    def trouble(link: ObjectRef, parent: Oid | None, error: OrtetError) -> None:
        told.append((link.oid, parent))

    def leaf(link: ObjectRef, parent: Oid | None) -> None:
        assert parent == top
        leaves.append(link.oid)

    marks = ReachableSet(store, walk)
    marks.add([ObjectRef(top, Kind.TREE)], on_broken=trouble, on_blob=leaf)
    assert sorted(told) == sorted([(gone, top), (liar, top)])
    assert leaves == [good]
    with pytest.raises(Corrupt) as caught:
        ReachableSet(store, walk).add([ObjectRef(gone, Kind.TREE)])
    assert caught.value.kind == "missing_object"

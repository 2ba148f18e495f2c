"""What can be reached, by which way, and what stands in the way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ortet._util.codec import encode
from ortet.errors import Corrupt, OrtetError
from ortet.ids import Oid
from ortet.objects.base import Kind, Link, Walk
from ortet.objects.gc.reachability import Marks
from ortet.objects.store import LocalObjects

Open = Callable[..., LocalObjects]


def tree(store: LocalObjects, label: str, *links: tuple[Kind, Oid], kind: Kind = Kind.TREE) -> Oid:
    return store.put(kind, encode((label, [(int(k), oid) for k, oid in links])))


def test_marking_a_long_history_does_not_recurse(store: LocalObjects, walk: Walk) -> None:
    head = tree(store, "first", kind=Kind.COMMIT)
    for number in range(5000):
        head = tree(store, f"{number}", (Kind.COMMIT, head), kind=Kind.COMMIT)
    marks = Marks(store, walk)
    ticks: list[int] = []
    marks.add([Link(head, Kind.COMMIT)], tick=ticks.append)
    assert (len(marks.oids), marks.commits) == (5001, 5001)
    assert ticks[-1] == 5001


def test_shared_parts_are_followed_once(store: LocalObjects, walk: Walk) -> None:
    calls: list[bytes] = []

    def counted(kind: Kind, data: bytes) -> list[Link]:
        calls.append(data)
        return list(walk(kind, data))

    blob = store.put(Kind.BLOB, b"leaf")
    shared = tree(store, "shared", (Kind.BLOB, blob))
    tops = [tree(store, f"{n}", (Kind.TREE, shared)) for n in range(10)]
    marks = Marks(store, counted)
    marks.add(Link(top, Kind.TREE) for top in tops)
    marks.add(Link(top, Kind.TREE) for top in tops)
    assert len(calls) == 11
    assert len(marks.oids) == 12


def test_fresh_holds_only_newly_marked_objects(store: LocalObjects, walk: Walk) -> None:
    marks = Marks(store, walk)
    first, second = tree(store, "1"), tree(store, "2")
    marks.add([Link(first, Kind.TREE)])
    marks.fresh.clear()
    marks.add([Link(first, Kind.TREE), Link(second, Kind.TREE)])
    assert marks.fresh == {second}


def test_missing_or_wrong_objects_are_reported_with_their_parent(
    store: LocalObjects, walk: Walk
) -> None:
    gone = Oid(bytes(32))
    liar = store.put(Kind.BLOB, b"no tree")
    good = store.put(Kind.BLOB, b"good")
    top = tree(store, "top", (Kind.TREE, gone), (Kind.TREE, liar), (Kind.BLOB, good))
    told: list[tuple[Oid, Oid | None]] = []
    leaves: list[Oid] = []

    def trouble(link: Link, parent: Oid | None, error: OrtetError) -> None:
        told.append((link.oid, parent))

    def leaf(link: Link, parent: Oid | None) -> None:
        assert parent == top
        leaves.append(link.oid)

    marks = Marks(store, walk)
    marks.add([Link(top, Kind.TREE)], trouble=trouble, leaf=leaf)
    assert sorted(told) == sorted([(gone, top), (liar, top)])
    assert leaves == [good]
    with pytest.raises(Corrupt) as caught:
        Marks(store, walk).add([Link(gone, Kind.TREE)])
    assert caught.value.kind == "missing_object"

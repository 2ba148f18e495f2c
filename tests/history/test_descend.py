"""Children first, each once, whatever the shape."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ortet.history.references import walk_postorder
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectRef


def link(number: int, kind: Kind = Kind.TREE) -> ObjectRef:
    return ObjectRef(Oid(number.to_bytes(32, "big")), kind)


def number(found: ObjectRef) -> int:
    return int.from_bytes(found.oid, "big")


@given(st.data(), st.integers(1, 12))
def test_children_come_first_and_once(data: st.DataObject, size: int) -> None:
    # node n refers only to smaller ones, so there are no cycles, as among hashes
    below = {
        n: data.draw(st.lists(st.integers(0, n - 1)) if n else st.just([])) for n in range(size)
    }
    roots = data.draw(st.lists(st.integers(0, size - 1)))
    found = list(
        walk_postorder([link(n) for n in roots], lambda at: [link(n) for n in below[number(at)]])
    )
    seen: list[int] = []
    for at, links in found:
        assert [number(child) for child in links] == below[number(at)]
        assert set(below[number(at)]) <= set(seen)
        seen.append(number(at))
    wanted = set(roots)
    for n in reversed(range(size)):
        wanted |= set(below[n]) if n in wanted else set()
    assert sorted(seen) == sorted(wanted)


def test_blobs_are_not_asked() -> None:
    def links_of(at: ObjectRef) -> list[ObjectRef]:
        assert at.kind is Kind.TREE
        return [link(1, Kind.BLOB), link(1, Kind.BLOB), link(2, Kind.BLOB)]

    found = [
        (number(at), at.kind) for at, _ in walk_postorder([link(1), link(2, Kind.BLOB)], links_of)
    ]
    assert found == [(1, Kind.BLOB), (2, Kind.BLOB), (1, Kind.TREE)]

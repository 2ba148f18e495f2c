"""A dry run writes nothing and knows the same names."""

from __future__ import annotations

import pytest

from ortet.errors import NotFound
from ortet.objects.base import DryRunObjectStore, Kind
from ortet.objects.store import PackedObjectStore


def test_scratch_writes_nothing_to_the_store(store: PackedObjectStore) -> None:
    scratch = DryRunObjectStore(store)
    tree = scratch.put(Kind.TREE, b"a tree")
    blob = scratch.put(Kind.BLOB, b"a blob")
    assert scratch.get(tree) == b"a tree"
    assert scratch.has(tree)
    assert not store.has(tree)
    with pytest.raises(NotFound):
        scratch.get(blob)
    assert not scratch.has(blob)
    assert store.stats().objects == 0


def test_scratch_gives_objects_the_same_ids_as_the_store(store: PackedObjectStore) -> None:
    scratch = DryRunObjectStore(store)
    for kind in Kind:
        assert scratch.put(kind, b"data") == store.put(kind, b"data")


def test_scratch_reads_objects_of_the_store_below(store: PackedObjectStore) -> None:
    below = store.put(Kind.BLOB, b"below")
    scratch = DryRunObjectStore(store)
    above = scratch.put(Kind.META, b"above")
    assert scratch.has(below)
    assert scratch.get(below) == b"below"
    assert dict(scratch.get_many([above, below, above])) == {above: b"above", below: b"below"}

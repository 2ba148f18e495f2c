"""A real store in a temporary directory, and a toy graph: references for sweep and verify."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ortet._util.codec import Hasher, decode, encode
from ortet.backends.local.bucket import FileBucket
from ortet.ids import Oid, SystemClock
from ortet.objects.base import Kind, ObjectRef, ReferenceParser
from ortet.objects.store import PackedObjectStore

Open = Callable[..., PackedObjectStore]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def open_store(root: Path) -> Iterator[Open]:
    """Open a handle on the store, or on another path; all are closed at the end."""
    opened: list[PackedObjectStore] = []

    def open_(path: Path = root, *, key: bytes | None = None, **options: Any) -> PackedObjectStore:
        store = PackedObjectStore(
            path,
            FileBucket(path / "bucket"),
            hasher=Hasher(key),
            clock=SystemClock(),
            **options,
        )
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Open) -> PackedObjectStore:
    return open_store()


def _walk(kind: Kind, data: bytes) -> Iterable[ObjectRef]:
    if kind in (Kind.BLOB, Kind.META):
        return []
    _, links = decode(tuple[str, list[tuple[int, bytes]]], data)
    return [ObjectRef(Oid(oid), Kind(number)) for number, oid in links]


@pytest.fixture
def walk() -> ReferenceParser:
    """References of toy objects: a label and a list of (kind, oid)."""
    return _walk


Commit = Callable[[PackedObjectStore, str, Sequence[bytes]], Oid]


@pytest.fixture
def commit() -> Commit:
    """Put blobs, a tree of them, and a commit of that; flushed."""

    def commit_(store: PackedObjectStore, label: str, blobs: Sequence[bytes]) -> Oid:
        oids = [store.put(Kind.BLOB, blob) for blob in blobs]
        tree = store.put(Kind.TREE, encode((label, [(int(Kind.BLOB), oid) for oid in oids])))
        oid = store.put(Kind.COMMIT, encode((label, [(int(Kind.TREE), tree)])))
        store.flush()
        return oid

    return commit_

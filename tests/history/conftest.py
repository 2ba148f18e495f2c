"""Objects in a dict: the graph layer needs no disk to be tested."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping

import msgspec
import pytest
from tests.fixtures.dict_objects import DictObjects

from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectStore
from ortet.objects.blobs import put_bytes


@pytest.fixture
def objects() -> ObjectStore:
    return DictObjects()


@pytest.fixture
def reads(objects: DictObjects) -> list[Oid]:
    """Ids read from `objects` so far."""
    return objects.reads


@pytest.fixture
def kinds(objects: DictObjects) -> Callable[[Oid], Kind]:
    """Which kind an object was put as."""
    return lambda oid: objects.held[oid][0]


@pytest.fixture
def find(objects: DictObjects) -> Callable[[str], list[tuple[Oid, Kind]]]:
    return objects.find


@pytest.fixture
def trees(objects: ObjectStore) -> Trees:
    return Trees(objects)


@pytest.fixture
def make_root(trees: Trees, objects: ObjectStore) -> Callable[..., TreeEntry]:
    """make_root({"a/b": b"content", "empty": None, "c": Entry, "/a": {"mtime": 5}}, mtime=1)

    Bytes are files, None is a directory, and "/path" changes fields of what is at path. Directories
    above a path are made as needed.
    """

    def make(spec: Mapping[str, object], mtime: int = 1) -> TreeEntry:
        changes: dict[bytes, TreeEntry | None] = {}
        for text, value in spec.items():
            path = os.fsencode(text).removeprefix(b"/")
            for n in range(path.count(b"/"), 0, -1):
                above = path.rsplit(b"/", n)[0]
                changes.setdefault(above, folder(above, mtime))
            if isinstance(value, dict):
                entry = changes[path] if path else folder(b"", mtime)
                assert entry is not None
                changes[path] = msgspec.structs.replace(entry, **value)
            elif isinstance(value, bytes):
                data = put_bytes(objects, value)
                mode = stat.S_IFREG | 0o644
                changes[path] = TreeEntry(base(path), mode, mtime, size=len(value), data=data)
            elif isinstance(value, TreeEntry):
                changes[path] = msgspec.structs.replace(value, name=base(path))
            else:
                changes[path] = folder(path, mtime)
        empty = trees.empty()
        root = msgspec.structs.replace(folder(b"", mtime), data=empty.oid, cid=empty.cid)
        return trees.patch_paths(root, changes)

    def folder(path: bytes, mtime: int) -> TreeEntry:
        return TreeEntry(base(path), stat.S_IFDIR | 0o755, mtime)

    def base(path: bytes) -> bytes:
        return path.rpartition(b"/")[2]

    return make

"""Encodings never change: what docs/format.md publishes is what the code makes and reads."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from zlib import crc32

import pytest

from ortet._util.codec import decode, encode
from ortet.history.records import (
    Commit,
    Image,
    Memory,
    PageMap,
    Processes,
    State,
    TreeEntry,
    TreePage,
)
from ortet.history.tree.page import PageStore
from ortet.history.tree.tree import Trees
from ortet.objects.base import Kind
from ortet.objects.store import PackedObjectStore

HERE = Path(__file__).parent
DOCUMENT = HERE.parent.parent / "docs" / "format.md"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


vectors = load("vectors")


def read_document() -> dict[str, tuple[bytes, str]]:
    text = DOCUMENT.read_text()
    found = re.findall(r"^(\w+)\n  bytes ([0-9a-f]*)\n  oid   ([0-9a-f]{64})$", text, re.M)
    return {name: (bytes.fromhex(data), oid) for name, data, oid in found}


def test_the_document_publishes_every_vector() -> None:
    assert vectors.published() in DOCUMENT.read_text()
    assert set(read_document()) == set(vectors.VECTORS)


@pytest.mark.parametrize("name", list(vectors.VECTORS))
def test_encodings_match_the_published_bytes_and_ids(name: str) -> None:
    data, oid = read_document()[name]
    assert vectors.VECTORS[name] == data
    assert vectors.HASH(data).hex() == oid


@pytest.mark.parametrize(
    ("name", "type_", "value"),
    [
        ("page", TreePage, vectors.PAGE),
        ("image", Image, vectors.IMAGE),
        ("pages", PageMap, vectors.PAGES),
        ("above", PageMap, vectors.ABOVE),
        ("processes", Processes, vectors.PROCESSES),
        ("state", State, vectors.STATE),
        ("commit", Commit, vectors.COMMIT),
        ("memory", Memory, vectors.MEMORY),
    ],
)
def test_published_bytes_decode_to_the_expected_records(
    name: str, type_: type, value: object
) -> None:
    assert decode(type_, read_document()[name][0]) == value


def test_the_tree_builder_makes_the_published_page(objects: PackedObjectStore) -> None:
    ref = Trees(objects).build([vectors.LINK, vectors.FILE])
    assert ref.oid.hex() == read_document()["page"][1]
    assert ref.cid.hex() == read_document()["content"][1]


def test_a_large_directory_is_cut_where_the_document_says(objects: PackedObjectStore) -> None:
    entries = [TreeEntry(b"%d" % n, 0o100644, 0) for n in range(5000)]
    ref = Trees(objects).build(entries)
    level, names = 0, sorted(entry.name for entry in entries)
    while len(names) > 48:
        names = [name for name in names if crc32(name) >> 5 * level & 31 == 0 or name == names[-1]]
        level += 1
    root = decode(TreePage, objects.get(ref.oid))
    assert root.level == level
    assert [page.last for page in root.pages] == names
    assert PageStore(objects, 0, Kind.TREE).load(ref.oid).level == level
    assert encode(root) == objects.get(ref.oid)

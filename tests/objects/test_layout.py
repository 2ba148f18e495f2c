"""What is a store, what is not, and whose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ortet._util.codec import Hasher
from ortet.errors import Invalid, Refused, Unsupported
from ortet.objects.base import Kind
from ortet.objects.layout import open_layout
from ortet.objects.store import PackedObjectStore
from ortet.testing.processes import run_in_threads

Open = Callable[..., PackedObjectStore]


def test_a_new_store_writes_its_format_file(root: Path) -> None:
    open_layout(root, Hasher())
    assert (root / "FORMAT").read_text() == "ortet store 1 0000000000000000\n"
    assert sorted(p.name for p in root.iterdir()) == ["FORMAT", "local"]
    open_layout(root, Hasher())


def test_concurrent_threads_create_one_store(root: Path) -> None:
    found = run_in_threads(open_layout, [(root, Hasher()) for _ in range(8)])
    assert len(found) == 8
    assert sorted(p.name for p in root.iterdir()) == ["FORMAT", "local"]


def test_a_store_is_created_in_a_directory_with_a_catalog(root: Path) -> None:
    root.mkdir()
    (root / "catalog.db").write_bytes(b"rows")
    open_layout(root, Hasher())
    assert (root / "FORMAT").exists()


def test_a_directory_with_other_things_is_not_made_a_store(root: Path) -> None:
    root.mkdir()
    (root / "thesis.tex").write_text("years of work")
    with pytest.raises(Invalid) as caught:
        open_layout(root, Hasher())
    assert caught.value.kind == "not_a_store"
    assert [p.name for p in root.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("text", ["", "hello\n", "ortet store\n", "ortet store x 00\n"])
def test_a_foreign_format_file_is_not_a_store(root: Path, text: str) -> None:
    root.mkdir()
    (root / "FORMAT").write_text(text)
    with pytest.raises(Invalid):
        open_layout(root, Hasher())


def test_a_file_is_not_a_store(root: Path) -> None:
    root.write_text("a file")
    with pytest.raises(Invalid):
        open_layout(root, Hasher())


def test_a_newer_store_asks_for_an_upgrade(root: Path) -> None:
    open_layout(root, Hasher())
    (root / "FORMAT").write_text("ortet store 2 0000000000000000 and more words\n")
    with pytest.raises(Unsupported) as caught:
        open_layout(root, Hasher())
    assert caught.value.kind == "newer_format"


def test_opening_a_store_with_another_key_is_refused(open_store: Open) -> None:
    store = open_store(key=b"k" * 32)
    oid = store.put(Kind.BLOB, b"secret")
    store.close()
    for key in (None, b"x" * 32):
        with pytest.raises(Refused) as caught:
            open_store(key=key)
        assert caught.value.kind == "wrong_key"
    again = open_store(key=b"k" * 32)
    assert again.get(oid) == b"secret"
    assert oid != Hasher().oid(b"secret")

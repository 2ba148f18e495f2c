"""A page in memory and its bytes: packed as the codec would, changed in place or not at all."""

from __future__ import annotations

import stat

import pytest

from ortet._util.codec import encode
from ortet.history.records import TreeEntry, TreePage, TreePageRef
from ortet.history.tree.page import PageNode, content_row, leaf_node


def file(name: bytes, size: int = 1) -> TreeEntry:
    return TreeEntry(name=name, mode=stat.S_IFREG | 0o644, mtime=1, size=size, data=b"x" * 32)


def numbered(count: int) -> list[TreeEntry]:
    return [file(b"f%05d" % number) for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 48, 300, 65_535, 65_536])
def test_a_packed_leaf_equals_the_codec_output(count: int) -> None:
    entries = numbered(count)
    packed = leaf_node(entries).packed()
    assert packed.data == encode(TreePage(0, entries))
    assert packed.rows == encode([content_row(entry) for entry in entries])


@pytest.mark.parametrize("count", [1, 15, 16, 300])
def test_packed_page_references_equal_the_codec_output(count: int) -> None:
    refs = [TreePageRef(b"f%05d" % number, b"o" * 32, b"c" * 32) for number in range(count)]
    packed = PageNode(1, [ref.last for ref in refs], refs).packed()
    assert packed.data == encode(TreePage(1, [], refs))
    assert packed.rows == encode([(ref.last, ref.cid) for ref in refs])


@pytest.mark.parametrize("size", [2, 1 << 40])  # as many bytes as before, and more
@pytest.mark.parametrize("names", [[b"f00000"], [b"f00047"], [b"f00020", b"f00003"]])
def test_a_node_with_replaced_entries_equals_a_newly_built_node(
    names: list[bytes], size: int
) -> None:
    node = leaf_node(numbered(48))
    changed = node.with_items_replaced({name: file(name, size) for name in names})
    entries = [file(e.name, size if e.name in names else 1) for e in numbered(48)]
    assert changed is not None
    assert changed.packed() == leaf_node(entries).packed()
    assert changed.find(names[0]) == file(names[0], size)
    assert changed.items == entries
    assert node.items == numbered(48)
    again = changed.with_items_replaced({names[0]: file(names[0])})
    assert again is not None
    assert again.find(names[-1]) == file(names[-1], size if len(names) > 1 else 1)


def test_a_key_that_comes_or_goes_is_not_replaced() -> None:
    node = leaf_node(numbered(10))
    assert node.with_items_replaced({b"f00003": file(b"f00003", 2), b"new": file(b"new")}) is None
    assert node.with_items_replaced({b"f00003": None}) is None
    assert node.with_items_replaced({b"zzz": file(b"zzz")}) is None

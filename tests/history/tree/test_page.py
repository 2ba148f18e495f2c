"""A page in memory and its bytes: packed as the codec would, changed in place or not at all."""

from __future__ import annotations

import stat

import msgspec
import pytest

from ortet._util.codec import decode, encode
from ortet.errors import Corrupt
from ortet.history.records import TreeEntry, TreePage, TreePageRef
from ortet.history.tree import page as nodes
from ortet.history.tree.page import MAX_PAGE_LEVEL, PageNode, content_row, ends_page, leaf_node
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectStore


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


def level(objects: ObjectStore, oid: Oid) -> int:
    return decode(TreePage, objects.get(oid)).level


def test_names_that_all_end_a_page_still_come_to_an_end(
    trees: Trees, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "crc32", lambda _: 0)
    entries = numbered(200)
    tree = trees.build(entries)
    assert level(objects, tree.oid) == MAX_PAGE_LEVEL
    assert list(trees.entries(tree.oid)) == entries
    assert trees.patch(tree.oid, {b"f00100": None}) == trees.build(
        [entry for entry in entries if entry.name != b"f00100"]
    )
    assert trees.patch(tree.oid, {e.name: None for e in entries[40:]}) == trees.build(entries[:40])


def test_names_that_never_end_a_page_stay_one(
    trees: Trees, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "crc32", lambda _: 0xFFFFFFFF)
    tree = trees.build(numbered(200))
    assert level(objects, tree.oid) == 0


@pytest.mark.parametrize(
    "entry",
    [
        file(b"a"),
        msgspec.structs.replace(file(b"a"), mode=stat.S_IFREG | 0o755),
        TreeEntry(b"a", stat.S_IFLNK | 0o777, 1, data=b"target"),
        TreeEntry(b"a", stat.S_IFDIR | 0o755, 1, data=b"d" * 32, cid=b"c" * 32),
        TreeEntry(b"a", stat.S_IFIFO | 0o644, 1),
    ],
)
def test_content_row_equals_the_content_of_the_entry(entry: TreeEntry) -> None:
    assert content_row(entry) == (entry.name, *entry.content)


def test_cache_is_bounded_and_not_needed(objects: ObjectStore) -> None:
    trees = Trees(objects, cache_bytes=1)
    tree = trees.build(numbered(2000))
    patched = trees.patch(tree.oid, {b"f01000": None})
    assert patched == Trees(objects).build([e for e in numbered(2000) if e.name != b"f01000"])
    assert len(trees._pages._cache) == 1


def test_page_of_the_wrong_level_is_corrupt(trees: Trees, objects: ObjectStore) -> None:
    tree = trees.build(numbered(100))
    page = decode(TreePage, objects.get(tree.oid))
    refs = [msgspec.structs.replace(page.pages[0], oid=tree.oid)]
    forged = objects.put(Kind.TREE, encode(TreePage(1, [], refs)))
    with pytest.raises(Corrupt) as caught:
        list(trees.entries(forged))
    assert caught.value.kind == "bad_tree"


def test_node_cut_covers_everything() -> None:
    keys = [b"%d" % number for number in range(500)]
    node = PageNode(0, keys, [file(key) for key in keys])
    cuts = node.split()
    assert [key for cut in cuts for key in cut.keys] == keys
    assert all(ends_page(cut.keys[-1], 0) for cut in cuts[:-1])
    assert not any(ends_page(key, 0) for cut in cuts for key in cut.keys[:-1])

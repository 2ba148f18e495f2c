"""Groups of names, and directories that are found again under another name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortet._util.codec import Hasher, decode
from ortet.backends.local.memory import MemoryBucket
from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid, SystemClock
from ortet.machines.capture.hardlinks import (
    MovedDirectories,
    names_of_inodes,
    put_links,
    walk_index,
)
from ortet.machines.capture.stat_index import RACY, DirectoryNode, StatIndex, marks_of
from ortet.objects.store import PackedObjectStore


def file(inode: int, links: int = 2, dev: int = 1) -> tuple[int, ...]:
    return (0o100644, inode, dev, links, 0, 0, 0, 0, 0)


def folder(inode: int) -> tuple[int, ...]:
    return (0o040755, inode, 1, 2, 0, 0, 0, 0, 0)


@pytest.fixture
def index(tmp_path: Path) -> StatIndex:
    objects = PackedObjectStore(tmp_path, MemoryBucket(), hasher=Hasher(), clock=SystemClock())
    index = StatIndex(Trees(objects))
    below, deep = DirectoryNode(), DirectoryNode()
    index.root.put("d", folder(100))
    index.root.dirs["d"] = below
    below.put("e", folder(101))
    below.dirs["e"] = deep
    index.root.put("a", file(7))
    below.put("b\udcff", file(7))
    deep.put("c", file(7, dev=2))
    deep.put("x", file(8))
    deep.put("single", file(9, links=1))
    return index


def test_walk_knows_every_path(index: StatIndex) -> None:
    assert [path for path, _ in walk_index(index)] == [b"", b"d", b"d/e"]


def test_groups_of_two_and_more_on_one_device(index: StatIndex) -> None:
    objects = index.trees.objects
    groups = decode(list[list[bytes]], objects.get(Oid(put_links(objects, index))))
    assert groups == [[b"a", b"d/b\xff"]]
    index.root.drop("a")
    assert put_links(objects, index) == b""


def test_siblings_are_found_by_inode(index: StatIndex) -> None:
    assert names_of_inodes(index, {(7, 1), (9, 1)}) == {
        b"": {b"a"},
        b"d": {b"b\xff"},
        b"d/e": {b"single"},
    }


def test_a_moved_directory_is_found_where_it_was(index: StatIndex) -> None:
    moves = MovedDirectories(index)
    deep = index.root.dirs["d"].dirs["e"]
    assert moves.pop_moved((101, 1)) is deep
    assert "e" not in index.root.dirs["d"].dirs
    assert marks_of(index.root.dirs["d"].stats["e"]) & RACY, "so that its old place is looked at"
    assert moves.pop_moved((101, 1)) is None
    assert moves.pop_moved((999, 1)) is None


def test_a_directory_that_left_before_it_arrived(index: StatIndex) -> None:
    moves = MovedDirectories(index)
    deep = index.root.dirs["d"].dirs["e"]
    index.root.dirs["d"].drop("e")
    moves.add_vanished((101, 1), deep)
    assert moves.pop_moved((101, 1)) is deep


def test_a_directory_with_pending_entries_is_not_moved(index: StatIndex) -> None:
    index.pending[b"d/e"] = {b"new": TreeEntry(b"new", 0o100644, 1)}
    assert MovedDirectories(index).pop_moved((101, 1)) is None

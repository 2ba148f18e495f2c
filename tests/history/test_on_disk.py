"""The graph over a real store and catalog: what was flushed is found by other handles."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ortet._util.codec import Hasher, encode
from ortet.backends.local.bucket import FileBucket
from ortet.backends.sqlite.catalog import SqliteCatalog
from ortet.errors import NotFound
from ortet.history.commits import History
from ortet.history.diff.tree_diff import diff_images, file_diff
from ortet.history.merge.tree_merge import merge_images
from ortet.history.records import Commit, Image, State, TreeEntry
from ortet.history.references import references
from ortet.history.refs import Refs
from ortet.history.tree.tree import Trees
from ortet.ids import Oid, SystemClock
from ortet.objects.base import Kind, ObjectRef
from ortet.objects.blobs import put_bytes, read_file
from ortet.objects.store import PackedObjectStore


@contextmanager
def opened(root: Path, key: bytes | None) -> Iterator[PackedObjectStore]:
    bucket = FileBucket(root / "bucket")
    objects = PackedObjectStore(root, bucket, hasher=Hasher(key), clock=SystemClock())
    try:
        yield objects
    finally:
        objects.close()
        bucket.close()


def file(objects: PackedObjectStore, name: bytes, content: bytes) -> TreeEntry:
    data = put_bytes(objects, content)
    return TreeEntry(name, stat.S_IFREG | 0o644, 1, size=len(content), data=data)


def image(objects: PackedObjectStore, files: dict[bytes, bytes]) -> Image:
    tree = Trees(objects).build(file(objects, name, text) for name, text in files.items())
    return Image(TreeEntry(b"", stat.S_IFDIR | 0o755, 1, data=tree.oid, cid=tree.cid))


def commit(objects: PackedObjectStore, files: Image, *parents: Oid, time: int) -> Oid:
    machine = objects.put(Kind.IMAGE, encode(files))
    state = objects.put(Kind.STATE, encode(State(machine=machine)))
    record = Commit(state, list(parents), f"at {time}", time, "me")
    return objects.put(Kind.COMMIT, encode(record))


FILES = {b"f%04d" % number: b"%d\n" % number * 3 for number in range(2000)}
OURS = {**FILES, b"f0007": b"ours\n7\n7\n", b"big": b"\n".join(b"%d" % n for n in range(100_000))}
THEIRS = {**FILES, b"f0007": b"7\n7\ntheirs\n", b"f0009": b"nine\n"}


@pytest.mark.parametrize("key", [None, b"k" * 32], ids=["plain", "keyed"])
def test_commits_on_disk_are_merged_after_reopening(tmp_path: Path, key: bytes | None) -> None:
    root = tmp_path / "store"
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    with opened(root, key) as objects:
        base = commit(objects, image(objects, FILES), time=1)
        ours = commit(objects, image(objects, OURS), base, time=2)
        theirs = commit(objects, image(objects, THEIRS), base, time=3)
        objects.flush()
        refs = Refs(catalog, objects, objects.find_by_prefix)
        refs.create("main", ours)
        refs.create("side", theirs)

    with opened(root, key) as objects:
        refs, history = Refs(catalog, objects, objects.find_by_prefix), History(objects)
        trees = Trees(objects)
        assert refs.resolve(theirs.hex()[:16]) == refs.resolve("side") == theirs
        assert refs.resolve("main~1") == history.merge_base(ours, theirs) == base
        sides = [history.image(oid) for oid in (base, ours, theirs)]
        merged = merge_images(trees, objects, base=sides[0], ours=sides[1], theirs=sides[2])
        assert merged.conflicts == []
        seven = trees.resolve(merged.image.root, b"f0007")
        assert seven is not None
        assert b"".join(read_file(objects, seven)) == b"ours\n7\ntheirs\n"
        changes = diff_images(trees, sides[1], merged.image)
        assert [change.path for change in changes] == ["f0007", "f0009"]
        text = file_diff(objects, changes[1].old, changes[1].new, path="f0009")
        assert text.endswith("@@ -1,3 +1 @@\n-9\n-9\n-9\n+nine\n")
        everything = reachable(objects, [ours, theirs])
        assert {link.kind for link in everything} == HELD
    catalog.close()


HELD = {Kind.BLOB, Kind.BLOCKS, Kind.TREE, Kind.IMAGE, Kind.STATE, Kind.COMMIT}


def reachable(objects: PackedObjectStore, heads: list[Oid]) -> set[ObjectRef]:
    """What sweep and verify would follow; every object of it must be there."""
    found = {ObjectRef(head, Kind.COMMIT) for head in heads}
    todo = list(found)
    while todo:
        link = todo.pop()
        fresh = set(references(link.kind, objects.get(link.oid))) - found
        found |= fresh
        todo += fresh
    return found


def test_ids_of_one_key_mean_nothing_in_a_store_with_another_key(tmp_path: Path) -> None:
    """Ids of one tenant mean nothing to a store with another key."""
    with opened(tmp_path / "a", b"a" * 32) as objects:
        mine = commit(objects, image(objects, {b"f": b"same"}), time=1)
    with opened(tmp_path / "b", b"b" * 32) as objects:
        assert commit(objects, image(objects, {b"f": b"same"}), time=1) != mine
        with pytest.raises(NotFound):
            History(objects).read(mine)

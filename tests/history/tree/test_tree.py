"""A directory's pages depend on its entries alone, and a patch is a build of the result."""

from __future__ import annotations

import random
import stat
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortet._util.codec import decode
from ortet.errors import Invalid
from ortet.history.records import TreeEntry, TreePage
from ortet.history.tree.page import SINGLE_PAGE_MAX_ITEMS
from ortet.history.tree.tree import TreeRef, Trees
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectStore

REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def file(name: bytes, data: bytes = b"x" * 32, mtime: int = 1) -> TreeEntry:
    return TreeEntry(name=name, mode=stat.S_IFREG | 0o644, mtime=mtime, size=1, data=data)


def folder(name: bytes, tree: TreeRef, mtime: int = 1) -> TreeEntry:
    return TreeEntry(name, stat.S_IFDIR | 0o755, mtime, data=tree.oid, cid=tree.cid)


def names(trees: Trees, oid: Oid) -> list[bytes]:
    return [entry.name for entry in trees.entries(oid)]


def level(objects: ObjectStore, oid: Oid) -> int:
    return decode(TreePage, objects.get(oid)).level


def numbered(count: int) -> list[TreeEntry]:
    return [file(b"f%05d" % number) for number in range(count)]


raw_names = st.binary(min_size=1, max_size=3).filter(lambda name: b"/" not in name)


def test_the_empty_tree_has_no_entries(trees: Trees) -> None:
    empty = trees.empty()
    assert names(trees, empty.oid) == []
    assert trees.lookup(empty.oid, b"a") is None
    assert trees.patch(trees.build([file(b"a")]).oid, {b"a": None}) == empty


def test_small_directory_is_one_page(trees: Trees, objects: ObjectStore) -> None:
    assert level(objects, trees.build(numbered(SINGLE_PAGE_MAX_ITEMS)).oid) == 0
    assert level(objects, trees.build(numbered(SINGLE_PAGE_MAX_ITEMS + 40)).oid) == 1


def test_order_of_input_does_not_matter(trees: Trees) -> None:
    entries = numbered(500)
    shuffled = entries.copy()
    random.Random(3).shuffle(shuffled)
    tree = trees.build(shuffled)
    assert tree == trees.build(entries)
    assert list(trees.entries(tree.oid)) == entries


def test_a_tree_with_a_repeated_name_is_invalid(trees: Trees) -> None:
    with pytest.raises(Invalid, match="one name twice"):
        trees.build([file(b"a"), file(b"a", b"y" * 32)])


def test_an_entry_is_found_in_every_page_of_a_tree(trees: Trees) -> None:
    entries = numbered(3000)
    oid = trees.build(entries).oid
    assert [trees.lookup(oid, entry.name) for entry in entries] == entries
    assert trees.lookup(oid, b"f00000a") is None
    assert trees.lookup(oid, b"zzz") is None


def test_pages_are_put_as_trees(trees: Trees, kinds: Callable[[Oid], Kind]) -> None:
    assert kinds(trees.build(numbered(3)).oid) is Kind.TREE


@REUSED
@given(
    start=st.sets(raw_names, max_size=200),
    steps=st.lists(
        st.dictionaries(raw_names, st.none() | st.integers(0, 3), max_size=60), max_size=4
    ),
)
def test_patch_equals_build(
    trees: Trees, start: set[bytes], steps: list[dict[bytes, int | None]]
) -> None:
    held = {name: file(name) for name in start}
    tree = trees.build(held.values())
    for step in steps:
        changes = {
            name: None if mtime is None else file(name, mtime=mtime) for name, mtime in step.items()
        }
        tree = trees.patch(tree.oid, changes)
        for name, entry in changes.items():
            held.pop(name, None)
            if entry is not None:
                held[name] = entry
        assert tree == trees.build(held.values())


@settings(REUSED, max_examples=25)
@given(seed=st.integers(0, 2**32))
@pytest.mark.slow
def test_patch_equals_build_in_a_directory_of_10000(trees: Trees, seed: int) -> None:
    rng = random.Random(seed)
    held = {entry.name: entry for entry in numbered(10_000)}
    tree = trees.build(held.values())
    for count in (1, 40, rng.randrange(9000), 9_900):
        gone = rng.sample(sorted(held), min(count, len(held)))
        fresh = {name: file(name) for name in (b"n%x" % rng.getrandbits(24) for _ in range(count))}
        changes: dict[bytes, TreeEntry | None] = dict.fromkeys(gone[: len(gone) * 3 // 4])
        changes |= {name: file(name, b"z" * 32) for name in gone[len(changes) :]}
        if rng.random() < 0.5:
            changes |= fresh
        tree = trees.patch(tree.oid, changes)
        held = {name: entry for name, entry in (held | changes).items() if entry is not None}
        assert tree == trees.build(held.values())


@settings(REUSED, max_examples=10)
@given(keep=st.integers(0, 60), seed=st.integers(0, 99))
def test_removing_entries_gives_the_same_tree_as_building_the_rest(
    trees: Trees, keep: int, seed: int
) -> None:
    entries = numbered(5000)
    random.Random(seed).shuffle(entries)
    tree = trees.build(entries)
    gone = {entry.name: None for entry in entries[keep:]}
    assert trees.patch(tree.oid, gone) == trees.build(entries[:keep])


def test_one_change_rewrites_one_page_a_level(objects: ObjectStore, reads: list[Oid]) -> None:
    tree = Trees(objects).build(numbered(10_000))
    reads.clear()
    Trees(objects).patch(tree.oid, {b"f05000": file(b"f05000", b"q" * 32)})
    assert len(reads) == 1 + level(objects, tree.oid)


def test_content_id_ignores_times_and_owners(trees: Trees) -> None:
    plain = trees.build(numbered(100))
    later = trees.build([msgspec.structs.replace(e, mtime=9, uid=5) for e in numbered(100)])
    other = trees.build([*numbered(99), file(b"f00099", b"y" * 32)])
    assert plain.cid == later.cid
    assert plain.oid != later.oid
    assert other.cid != plain.cid


# paths


@pytest.fixture
def root(trees: Trees) -> TreeEntry:
    """a/b/c.txt, a/d.txt, e.txt"""
    b = trees.build([file(b"c.txt")])
    a = trees.build([folder(b"b", b), file(b"d.txt")])
    return folder(b"", trees.build([folder(b"a", a), file(b"e.txt")]))


def paths(trees: Trees, root: TreeEntry) -> list[bytes]:
    return [path for path, _ in trees.walk(root)]


def test_resolve_finds_every_path_of_a_walk(trees: Trees, root: TreeEntry) -> None:
    assert paths(trees, root) == [b"a", b"a/b", b"a/b/c.txt", b"a/d.txt", b"e.txt"]
    assert trees.resolve(root, b"") == root
    found = trees.resolve(root, b"a/b/c.txt")
    assert found is not None
    assert found.name == b"c.txt"
    assert trees.resolve(root, b"a/x") is None
    assert trees.resolve(root, b"e.txt/x") is None
    assert trees.resolve(root, b"x/y") is None


def test_patch_paths_changes_only_what_is_named(trees: Trees, root: TreeEntry) -> None:
    new = trees.patch_paths(
        root,
        {b"a/b/c.txt": file(b"c.txt", b"new!" * 8), b"a/d.txt": None, b"f": file(b"f")},
    )
    assert paths(trees, new) == [b"a", b"a/b", b"a/b/c.txt", b"e.txt", b"f"]
    changed = trees.resolve(new, b"a/b/c.txt")
    assert changed == file(b"c.txt", b"new!" * 8)
    assert new.mtime == root.mtime
    assert trees.resolve(new, b"e.txt") == trees.resolve(root, b"e.txt")


def test_patch_paths_with_nothing_is_the_same_root(trees: Trees, root: TreeEntry) -> None:
    assert trees.patch_paths(root, {}) == root
    assert trees.patch_paths(root, {b"zzz": None}) == root


def test_patch_paths_directory_keeps_its_contents(trees: Trees, root: TreeEntry) -> None:
    bare = TreeEntry(b"a", stat.S_IFDIR | 0o700, 77)
    new = trees.patch_paths(root, {b"a": bare, b"a/b/new": file(b"new"), b"": folder_root(root, 5)})
    assert new.mtime == 5
    assert paths(trees, new) == [b"a", b"a/b", b"a/b/c.txt", b"a/b/new", b"a/d.txt", b"e.txt"]
    a = trees.resolve(new, b"a")
    assert a is not None
    assert (a.mode, a.mtime) == (stat.S_IFDIR | 0o700, 77)


def folder_root(root: TreeEntry, mtime: int) -> TreeEntry:
    return msgspec.structs.replace(root, mtime=mtime)


def test_patch_paths_replaces_whole_directories(trees: Trees, root: TreeEntry) -> None:
    empty = folder(b"a", trees.empty())
    new = trees.patch_paths(root, {b"a": empty, b"a/x": file(b"x")})
    assert paths(trees, new) == [b"a", b"a/x", b"e.txt"]


def test_patch_paths_new_directories_and_file_to_directory(trees: Trees, root: TreeEntry) -> None:
    bare = TreeEntry(b"n", stat.S_IFDIR | 0o755, 1)
    turned = TreeEntry(b"e.txt", stat.S_IFDIR | 0o755, 1)
    new = trees.patch_paths(
        root, {b"n": bare, b"n/n": bare, b"n/n/x": file(b"x"), b"e.txt": turned, b"a": None}
    )
    assert paths(trees, new) == [b"e.txt", b"n", b"n/n", b"n/n/x"]
    n = trees.resolve(new, b"n/n")
    assert n is not None
    assert n.cid == trees.build([file(b"x")]).cid


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({b"no/x": file(b"x")}, "no_parent"),
        ({b"no/x": None}, "no_parent"),
        ({b"e.txt/x": file(b"x")}, "no_parent"),
        ({b"a": None, b"a/x": file(b"x")}, "no_parent"),
        ({b"": None}, "no_parent"),
        ({b"a/y": file(b"x")}, "bad_path"),
        ({b"a/": None}, "bad_path"),
        ({b"a/..": None}, "bad_path"),
    ],
)
def test_patch_paths_refuses_bad_paths_and_missing_parents(
    trees: Trees, root: TreeEntry, changes: dict[bytes, TreeEntry | None], kind: str
) -> None:
    with pytest.raises(Invalid) as caught:
        trees.patch_paths(root, changes)
    assert caught.value.kind == kind


def test_paths_deeper_than_the_recursion_limit(trees: Trees) -> None:
    depth = 3000
    tree = trees.build([file(b"x")])
    for _ in range(depth):
        tree = trees.build([folder(b"d", tree)])
    root = folder(b"", tree)
    assert sum(1 for _ in trees.walk(root)) == depth + 1
    bottom = b"d/" * depth
    new = trees.patch_paths(root, {bottom + b"y": file(b"y")})
    assert trees.resolve(new, bottom + b"y") == file(b"y")


nested = st.dictionaries(
    st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=4).map(b"/".join),
    st.integers(0, 3),
    max_size=12,
)


@REUSED
@given(start=nested, then=nested)
def test_patch_paths_equals_starting_from_nothing(
    trees: Trees, start: dict[bytes, int], then: dict[bytes, int]
) -> None:
    nothing = folder(b"", trees.empty())
    once = trees.patch_paths(nothing, with_parents({**start, **then}))
    twice = trees.patch_paths(
        trees.patch_paths(nothing, with_parents(start)), with_parents({**start, **then})
    )
    assert once == twice


def with_parents(spec: dict[bytes, int]) -> dict[bytes, TreeEntry | None]:
    """Files (as leaves) with every directory above them named."""
    parents = {path.rsplit(b"/", n)[0] for path in spec for n in range(1, path.count(b"/") + 1)}
    changes: dict[bytes, TreeEntry | None] = {
        path: TreeEntry(path.rpartition(b"/")[2], stat.S_IFDIR | 0o755, 1) for path in parents
    }
    for path, mtime in spec.items():
        if path not in parents:
            changes[path] = file(path.rpartition(b"/")[2], mtime=mtime)
    return changes


# difference


def expected_difference(
    old: dict[bytes, TreeEntry], new: dict[bytes, TreeEntry]
) -> list[tuple[TreeEntry | None, TreeEntry | None]]:
    names = sorted(old.keys() | new.keys())
    return [(old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n)]


@REUSED
@given(
    old=st.dictionaries(raw_names, st.integers(0, 1), max_size=300),
    new=st.dictionaries(raw_names, st.integers(0, 1), max_size=300),
)
def test_difference_lists_exactly_the_changed_entries(
    trees: Trees, old: dict[bytes, int], new: dict[bytes, int]
) -> None:
    a = {name: file(name, mtime=mtime) for name, mtime in old.items()}
    b = {name: file(name, mtime=mtime) for name, mtime in new.items()}
    got = trees.difference(trees.build(a.values()).oid, trees.build(b.values()).oid)
    assert got == expected_difference(a, b)


def test_difference_of_trees_of_different_height(trees: Trees) -> None:
    many = {entry.name: entry for entry in numbered(5000)}
    few = {entry.name: entry for entry in numbered(60)}
    a, b = trees.build(many.values()).oid, trees.build(few.values()).oid
    assert trees.difference(a, b) == expected_difference(many, few)
    assert trees.difference(b, a) == expected_difference(few, many)


def test_difference_reads_only_what_differs(objects: ObjectStore, reads: list[Oid]) -> None:
    trees = Trees(objects)
    old = trees.build(numbered(10_000))
    new = trees.patch(old.oid, {b"f07000": None})
    reads.clear()
    assert Trees(objects).difference(old.oid, new.oid) == [(file(b"f07000"), None)]
    assert len(reads) <= 8

"""Renames: by equal content, whole directories first, and every file accounted for."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortet.history.diff.tree_diff import TreeChange, diff_trees
from ortet.history.records import TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.objects.base import ObjectStore

MakeRoot = Callable[..., TreeEntry]
REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def told(changes: list[TreeChange]) -> list[tuple[str, str]]:
    return [(change.kind, change.path) for change in changes]


def renamed(changes: list[TreeChange]) -> list[tuple[str | None, str]]:
    return [(change.old_path, change.path) for change in changes if change.kind == "renamed"]


def test_a_file_with_equal_content_is_reported_as_renamed(
    trees: Trees, make_root: MakeRoot
) -> None:
    old = make_root({"a/x": b"same", "b/keep": b"1"})
    new = make_root({"a": None, "b/keep": b"1", "b/y": b"same", "/b/y": {"mtime": 5}})
    changes = diff_trees(trees, old, new)
    assert told(changes) == [("renamed", "b/y")]
    assert changes[0].old_path == "a/x"
    assert changes[0].fields == ["mtime"]


def test_empty_files_are_no_renames(trees: Trees, make_root: MakeRoot) -> None:
    changes = diff_trees(trees, make_root({"a": b""}), make_root({"b": b""}))
    assert told(changes) == [("removed", "a"), ("added", "b")]


def test_a_rename_prefers_the_same_file_name(trees: Trees, make_root: MakeRoot) -> None:
    old = make_root({"p/one": b"same", "p/two": b"same", "p/z": b"z"})
    new = make_root({"q/two": b"same", "q/uno": b"same"})
    assert renamed(diff_trees(trees, old, new)) == [("p/two", "q/two"), ("p/one", "q/uno")]


def test_renamed_directory_is_one_change_and_not_read(
    objects: ObjectStore, make_root: MakeRoot, reads: list[Oid]
) -> None:
    files = {f"f{number}": b"%d" % number for number in range(2000)}
    old = make_root({f"old/{name}": data for name, data in files.items()})
    new = make_root({f"moved/{name}": data for name, data in files.items()})
    reads.clear()
    assert renamed(diff_trees(Trees(objects), old, new)) == [("old", "moved")]
    assert len(reads) == 2


def test_a_directory_moved_into_a_new_directory_is_one_rename(
    trees: Trees, make_root: MakeRoot
) -> None:
    changes = diff_trees(trees, make_root({"a/x": b"1"}), make_root({"deep/new/x": b"1"}))
    assert told(changes) == [("added", "deep"), ("renamed", "deep/new")]


def test_directory_with_other_times_is_still_renamed(trees: Trees, make_root: MakeRoot) -> None:
    changes = diff_trees(trees, make_root({"a/x": b"1"}), make_root({"b/x": b"1"}, mtime=7))
    assert told(changes) == [("renamed", "b")]
    assert changes[0].fields == ["mtime", "below"]


def test_renames_do_not_overlap(trees: Trees, make_root: MakeRoot) -> None:
    """A directory inside one that moved as a whole is not matched a second time."""
    old = make_root({"a/b/f": b"1", "c/b/f": b"1"})
    new = make_root({"x/b/f": b"1", "b/f": b"1"})
    changes = diff_trees(trees, old, new)
    assert sorted(renamed(changes)) == [("a", "x"), ("c/b", "b")]
    assert apply(trees, old, changes, new)


def apply(trees: Trees, old: TreeEntry, changes: list[TreeChange], new: TreeEntry) -> bool:
    """Whether the changes account for every file of both trees."""
    before = {path for path, entry in trees.walk(old) if not entry.is_dir}
    after = {path for path, entry in trees.walk(new) if not entry.is_dir}
    for change in changes:
        path = change.path.encode()
        if change.kind == "removed":
            before.discard(path)
        elif change.kind == "added":
            before |= {path} & after
        elif change.kind == "renamed":
            assert change.old_path is not None
            source = change.old_path.encode()
            moved = {p for p in before if p == source or p.startswith(source + b"/")}
            before = (before - moved) | {path + p[len(source) :] for p in moved}
    return before == after


names = st.sampled_from(["a", "b", "c", "d"])
specs = st.dictionaries(
    st.lists(names, min_size=3, max_size=3).map("/".join),
    st.sampled_from([b"1", b"2", b"3"]),
    max_size=8,
)


@REUSED
@given(old=specs, new=specs)
def test_changes_account_for_every_file(
    trees: Trees, make_root: MakeRoot, old: dict[str, bytes], new: dict[str, bytes]
) -> None:
    a, b = make_root(old), make_root(new)
    changes = diff_trees(trees, a, b)
    assert apply(trees, a, changes, b)
    assert bool(changes) == (a != b)
    assert [change.path for change in changes] == sorted(change.path for change in changes)

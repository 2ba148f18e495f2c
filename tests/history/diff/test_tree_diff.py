"""What differs is told, once, and nothing that is equal is read."""

from __future__ import annotations

import stat
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortet._util.codec import encode
from ortet.history.diff.tree_diff import TreeChange, diff_images, diff_trees, file_diff
from ortet.history.records import Image, TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectStore

MakeRoot = Callable[..., TreeEntry]
REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def told(changes: list[TreeChange]) -> list[tuple[str, str]]:
    return [(change.kind, change.path) for change in changes]


def test_the_diff_of_equal_trees_is_empty(trees: Trees, make_root: MakeRoot) -> None:
    root = make_root({"a": b"1"})
    assert diff_trees(trees, root, root) == []
    assert diff_trees(trees, None, None) == []


def test_the_diff_against_no_tree_lists_every_path(trees: Trees, make_root: MakeRoot) -> None:
    root = make_root({"a/b": b"1", "c": b"2"})
    added = [("added", "a"), ("added", "a/b"), ("added", "c")]
    assert told(diff_trees(trees, None, root)) == added
    removed = [("removed", path) for _, path in added]
    assert told(diff_trees(trees, root, None)) == removed


def test_the_diff_tells_added_removed_modified_and_metadata_changes(
    trees: Trees, make_root: MakeRoot
) -> None:
    old = make_root({"gone": b"1", "edit": b"2", "mode": b"3", "deep/same": b"4", "l": link("x")})
    new = make_root(
        {
            "edit": b"22",
            "mode": b"3",
            "/mode": {"mode": stat.S_IFREG | 0o755, "uid": 7},
            "deep/same": b"4",
            "new": b"5",
            "l": link("y"),
        }
    )
    changes = diff_trees(trees, old, new)
    assert told(changes) == [
        ("modified", "edit"),
        ("removed", "gone"),
        ("modified", "l"),
        ("metadata", "mode"),
        ("added", "new"),
    ]
    edit, gone, _, mode, _ = changes
    assert edit.content_changed
    assert not mode.content_changed
    assert mode.fields == ["mode", "uid"]
    assert gone.new is None
    assert gone.old is not None


def link(target: str) -> TreeEntry:
    return TreeEntry(b"", stat.S_IFLNK | 0o777, 1, data=target.encode())


def test_a_directory_mtime_is_listed_only_without_other_changes(
    trees: Trees, make_root: MakeRoot
) -> None:
    old = make_root({"d/a": b"1"})
    touched = make_root({"d/a": b"1", "/d": {"mtime": 9}})
    assert told(diff_trees(trees, old, touched)) == [("metadata", "d")]
    edited = make_root({"d/a": b"2", "/d": {"mtime": 9}, "/": {"mtime": 9}})
    assert told(diff_trees(trees, old, edited)) == [("modified", "d/a")]
    root = make_root({"d/a": b"1", "/": {"mtime": 9}})
    assert told(diff_trees(trees, old, root)) == [("metadata", ".")]


def test_a_file_replaced_by_a_directory_is_removed_and_added(
    trees: Trees, make_root: MakeRoot
) -> None:
    old, new = make_root({"x": b"1"}), make_root({"x/y": b"2"})
    assert sorted(told(diff_trees(trees, old, new))) == [
        ("added", "x"),
        ("added", "x/y"),
        ("removed", "x"),
    ]


def test_a_file_replaced_by_a_symlink_is_modified(trees: Trees, make_root: MakeRoot) -> None:
    changes = diff_trees(trees, make_root({"x": b"1"}), make_root({"x": link("1")}))
    assert told(changes) == [("modified", "x")]
    assert changes[0].content_changed


def test_device_number_is_content(trees: Trees, make_root: MakeRoot) -> None:
    null = TreeEntry(b"", stat.S_IFCHR | 0o666, 1, rdev=0x103)
    zero = TreeEntry(b"", stat.S_IFCHR | 0o666, 1, rdev=0x105)
    changes = diff_trees(trees, make_root({"x": null}), make_root({"x": zero}))
    assert told(changes) == [("modified", "x")]


def test_the_diff_shows_names_that_are_not_utf8(trees: Trees, make_root: MakeRoot) -> None:
    changes = diff_trees(trees, None, make_root({"\udcff\n": b"1"}))
    assert told(changes) == [("added", "\udcff\n")]


# images


def test_the_diff_of_images_reports_changed_hardlinks(
    trees: Trees, objects: ObjectStore, make_root: MakeRoot
) -> None:
    root = make_root({"a": b"1", "b": b"1", "c": b"1"})
    two = objects.put(Kind.META, encode([[b"a", b"b"]]))
    three = objects.put(Kind.META, encode([[b"a", b"b", b"c"]]))
    before, after = Image(root, links=two), Image(root, links=three)
    changes = diff_images(trees, before, after)
    assert told(changes) == [("metadata", "a"), ("metadata", "b"), ("metadata", "c")]
    assert changes[0].fields == ["links"]
    assert diff_images(trees, after, after) == []
    assert told(diff_images(trees, None, after)) == [("added", "a"), ("added", "b"), ("added", "c")]


# files


def entry(trees: Trees, root: TreeEntry, path: bytes) -> TreeEntry:
    found = trees.resolve(root, path)
    assert found is not None
    return found


def test_file_diff_returns_a_unified_diff_with_both_paths(
    trees: Trees, objects: ObjectStore, make_root: MakeRoot
) -> None:
    old = entry(trees, make_root({"f": b"one\ntwo\n"}), b"f")
    new = entry(trees, make_root({"f": b"one\n2\n"}), b"f")
    assert file_diff(objects, old, new, path="f") == (
        "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    )
    assert file_diff(objects, old, old, path="f") == ""
    assert file_diff(objects, None, new, path="f").startswith("--- /dev/null\n+++ b/f\n@@ -0,0")
    assert file_diff(objects, old, None, path="f").startswith("--- a/f\n+++ /dev/null\n")
    assert file_diff(objects, old, new, path="g", old_path="f").startswith("--- a/f\n+++ b/g\n")


def test_file_diff_shows_symlink_targets_and_is_empty_for_empty_files(
    trees: Trees, objects: ObjectStore, make_root: MakeRoot
) -> None:
    text = file_diff(objects, link("x"), link("y"), path="l")
    assert "-x\n" in text
    assert "+y\n" in text
    empty = entry(trees, make_root({"f": b""}), b"f")
    assert file_diff(objects, None, empty, path="f") == ""


@pytest.mark.parametrize("content", [b"a\0b", b"long line\n" * 500_000])
def test_file_diff_of_binary_and_huge_files_is_one_line(
    trees: Trees, objects: ObjectStore, make_root: MakeRoot, content: bytes
) -> None:
    old = entry(trees, make_root({"f": b"text\n"}), b"f")
    new = entry(trees, make_root({"f": content}), b"f")
    expected = f"Binary file f differs (5 -> {len(content)} bytes)\n"
    assert file_diff(objects, old, new, path="f") == expected


def test_file_diff_of_a_fifo_is_one_binary_line(objects: ObjectStore) -> None:
    pipe = TreeEntry(b"p", stat.S_IFIFO | 0o644, 1)
    assert file_diff(objects, None, pipe, path="p") == "Binary file p differs (0 -> 0 bytes)\n"


def test_a_change_converts_to_plain_data() -> None:
    change = TreeChange("a", "added", content_changed=True)
    assert msgspec.to_builtins(change)["path"] == "a"


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

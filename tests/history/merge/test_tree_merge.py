"""Three-way merge of trees: who changed what, conflicts as data, nothing half applied."""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortet._util.codec import encode
from ortet.history.merge.text_merge import Favor, TextMerge
from ortet.history.merge.tree_merge import (
    MAX_MERGE_TEXT_BYTES,
    EntryMerge,
    FileConflict,
    MergedImage,
    merge_file,
    merge_images,
    merge_metadata,
    only_times_changed,
)
from ortet.history.records import Image, System, TreeEntry
from ortet.history.references import read_hardlinks
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectStore
from ortet.objects.blobs import read_file

MakeRoot = Callable[..., TreeEntry]
Spec = dict[str, Any]
REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

Merge = Callable[..., tuple[dict[str, str], list[str]]]

ENTRY = TreeEntry(b"f", stat.S_IFREG | 0o644, 10, size=1, data=b"1" * 32)


class Bench:
    """Merges written as specs of trees, and results read back as dicts."""

    def __init__(self, trees: Trees, objects: ObjectStore, make_root: MakeRoot) -> None:
        self.trees = trees
        self.objects = objects
        self.root = make_root

    def merge(
        self, base: Spec | None, ours: Spec, theirs: Spec, favor: Favor | None = None
    ) -> MergedImage:
        return merge_images(
            self.trees,
            self.objects,
            base=None if base is None else Image(self.root(base)),
            ours=Image(self.root(ours)),
            theirs=Image(self.root(theirs)),
            favor=favor,
        )

    def files(self, merged: MergedImage) -> dict[str, bytes | None]:
        """Path -> content; None for directories, the target for symlinks."""
        found: dict[str, bytes | None] = {}
        for path, entry in self.trees.walk(merged.image.root):
            content = entry.data if entry.is_link else self.read(entry)
            found[path.decode()] = None if entry.is_dir else content
        return found

    def read(self, entry: TreeEntry) -> bytes:
        return b"".join(read_file(self.objects, entry)) if entry.is_file else b""

    def entry(self, merged: MergedImage, path: bytes) -> TreeEntry:
        found = self.trees.resolve(merged.image.root, path)
        assert found is not None
        return found


@pytest.fixture
def bench(trees: Trees, objects: ObjectStore, make_root: MakeRoot) -> Bench:
    return Bench(trees, objects, make_root)


def kinds(merged: MergedImage) -> list[tuple[str, str]]:
    return [(conflict.kind, conflict.path) for conflict in merged.conflicts]


BASE: Spec = {"a": b"1\n2\n3\n", "d/x": b"x", "d/y": b"y", "gone": b"g"}


def test_changes_of_one_side_only_are_taken(bench: Bench) -> None:
    changed = {"a": b"new", "d/x": b"x", "d/z": b"z", "e/f/g": b"deep"}
    for ours, theirs in ((BASE, changed), (changed, BASE)):
        merged = bench.merge(BASE, ours, theirs)
        assert merged.conflicts == []
        assert merged.image.root == bench.root(changed)


def test_changes_of_both_sides_to_different_files_are_merged(bench: Bench) -> None:
    ours = {**BASE, "d/x": b"ours", "new1": b"1"}
    theirs = {**BASE, "d/y": b"theirs", "new2": b"2"}
    del theirs["gone"]
    merged = bench.merge(BASE, ours, theirs)
    assert merged.conflicts == []
    assert bench.files(merged) == {
        "a": b"1\n2\n3\n",
        "d": None,
        "d/x": b"ours",
        "d/y": b"theirs",
        "new1": b"1",
        "new2": b"2",
    }


def test_text_is_merged_by_line(bench: Bench) -> None:
    merged = bench.merge({"a": b"1\n2\n3\n"}, {"a": b"one\n2\n3\n"}, {"a": b"1\n2\nthree\n"})
    assert merged.conflicts == []
    assert bench.files(merged) == {"a": b"one\n2\nthree\n"}
    assert bench.entry(merged, b"a").size == len(b"one\n2\nthree\n")


TEXTS = (b"1\n2\n3\n4\n5\n6\n", b"ONE\n2\n3\n4\nours\n6\n", b"1\n2\nDREI\n4\ntheirs\n6\n")


def test_text_conflict_leaves_ours_whole(bench: Bench) -> None:
    base, ours, theirs = TEXTS
    merged = bench.merge({"a": base}, {"a": ours}, {"a": theirs})
    ids = [bench.objects.hasher.oid(text).hex() for text in TEXTS]
    assert merged.conflicts == [
        FileConflict("a", "content", base=ids[0], ours=ids[1], theirs=ids[2])
    ]
    assert bench.files(merged) == {"a": ours}


@pytest.mark.parametrize("favor", ["ours", "theirs"])
def test_favor_settles_lines_and_keeps_the_rest_of_both(bench: Bench, favor: Favor) -> None:
    base, ours, theirs = TEXTS
    merged = bench.merge({"a": base}, {"a": ours}, {"a": theirs}, favor)
    assert bench.files(merged) == {"a": b"ONE\n2\nDREI\n4\n%s\n6\n" % favor.encode()}
    assert [conflict.settled for conflict in merged.conflicts] == [True]


def test_a_binary_file_changed_on_both_sides_is_a_conflict(bench: Bench) -> None:
    sides: tuple[Spec, Spec, Spec] = ({"a": b"\0" + b"1"}, {"a": b"\0" + b"2"}, {"a": b"\0" + b"3"})
    assert kinds(bench.merge(*sides)) == [("content", "a")]
    assert bench.files(bench.merge(*sides)) == {"a": b"\0" + b"2"}
    assert bench.files(bench.merge(*sides, "theirs")) == {"a": b"\0" + b"3"}
    assert bench.files(bench.merge(*sides, "ours")) == {"a": b"\0" + b"2"}


def test_a_file_added_differently_on_both_sides_is_a_conflict(bench: Bench) -> None:
    assert bench.merge({}, {"a": b"same"}, {"a": b"same"}).conflicts == []
    merged = bench.merge({}, {"a": b"one\n"}, {"a": b"two\n"})
    assert kinds(merged) == [("added", "a")]
    assert merged.conflicts[0].base is None
    assert bench.files(merged) == {"a": b"one\n"}


def test_trees_without_a_common_base_are_united(bench: Bench) -> None:
    merged = bench.merge(None, {"d/a": b"1"}, {"d/b": b"2", "c": b"3"})
    assert merged.conflicts == []
    assert bench.files(merged) == {"c": b"3", "d": None, "d/a": b"1", "d/b": b"2"}


def test_a_deletion_against_a_change_is_a_conflict(bench: Bench) -> None:
    base: Spec = {"a": b"1", "k": b"k"}
    gone: Spec = {"k": b"k"}
    changed: Spec = {"a": b"2", "k": b"k"}
    by_us = bench.merge(base, gone, changed)
    assert kinds(by_us) == [("deleted_by_us", "a")]
    assert by_us.conflicts[0].ours is None
    assert bench.files(by_us) == {"k": b"k"}
    by_them = bench.merge(base, changed, gone)
    assert kinds(by_them) == [("deleted_by_them", "a")]
    assert bench.files(by_them) == {"a": b"2", "k": b"k"}
    assert bench.files(bench.merge(base, gone, changed, "theirs")) == {"a": b"2", "k": b"k"}
    assert bench.files(bench.merge(base, changed, gone, "theirs")) == {"k": b"k"}
    assert bench.files(bench.merge(base, changed, gone, "ours")) == {"a": b"2", "k": b"k"}


def test_a_deleted_directory_against_a_change_inside_is_a_conflict(bench: Bench) -> None:
    base: Spec = {"d/a": b"1", "d/b": b"2", "k": b"k"}
    changed: Spec = {"d/a": b"changed", "d/b": b"2", "k": b"k"}
    merged = bench.merge(base, {"k": b"k"}, changed)
    assert kinds(merged) == [("deleted_by_us", "d")]
    assert bench.files(merged) == {"k": b"k"}
    merged = bench.merge(base, changed, {"k": b"k"})
    assert kinds(merged) == [("deleted_by_them", "d")]
    assert bench.files(merged)["d/b"] == b"2"


@pytest.mark.parametrize("path", ["/d", "/d/a"])
def test_a_touched_file_that_the_other_side_deleted_is_deleted(bench: Bench, path: str) -> None:
    base: Spec = {"d/a": b"1", "k": b"k"}
    touched: Spec = {**base, path: {"mtime": 99}}
    for sides in ((touched, {"k": b"k"}), ({"k": b"k"}, touched)):
        merged = bench.merge(base, *sides)
        assert merged.conflicts == []
        assert bench.files(merged) == {"k": b"k"}


def test_a_file_deleted_on_both_sides_is_no_conflict(bench: Bench) -> None:
    assert bench.merge({"a": b"1"}, {}, {}).conflicts == []


def test_a_file_against_a_directory_is_a_type_conflict(bench: Bench) -> None:
    merged = bench.merge({}, {"x": b"file"}, {"x/y": b"in a directory"})
    assert kinds(merged) == [("type", "x")]
    assert bench.files(merged) == {"x": b"file"}
    settled = bench.merge({}, {"x": b"file"}, {"x/y": b"in a directory"}, "theirs")
    assert bench.files(settled) == {"x": None, "x/y": b"in a directory"}
    turned = bench.merge({"x": b"1"}, {"x": b"1"}, {"x/y": b"2"})
    assert turned.conflicts == []
    assert bench.files(turned) == {"x": None, "x/y": b"2"}
    both = bench.merge({"x": b"1"}, {"x/a": b"a"}, {"x/b": b"b"})
    assert both.conflicts == []
    assert bench.files(both) == {"x": None, "x/a": b"a", "x/b": b"b"}


def test_a_symlink_changed_on_both_sides_is_a_conflict(bench: Bench) -> None:
    def link(target: bytes) -> TreeEntry:
        return TreeEntry(b"", stat.S_IFLNK | 0o777, 1, data=target)

    clean = bench.merge({"l": link(b"a")}, {"l": link(b"a")}, {"l": link(b"b")})
    assert bench.files(clean) == {"l": b"b"}
    merged = bench.merge({"l": link(b"a")}, {"l": link(b"b")}, {"l": link(b"c")})
    assert kinds(merged) == [("content", "l")]
    assert bench.files(merged) == {"l": b"b"}


# metadata


def mode(bits: int) -> dict[str, int]:
    return {"mode": stat.S_IFREG | bits}


def test_metadata_of_one_side_and_content_of_the_other_are_merged(bench: Bench) -> None:
    ours: Spec = {"a": b"1", "/a": {**mode(0o755), "mtime": 5}}
    theirs: Spec = {"a": b"22", "/a": {"uid": 7, "mtime": 9}}
    merged = bench.merge({"a": b"1"}, ours, theirs)
    assert merged.conflicts == []
    entry = bench.entry(merged, b"a")
    assert (entry.mode & 0o777, entry.uid, entry.mtime) == (0o755, 7, 9)
    assert bench.read(entry) == b"22"


def test_metadata_changed_on_both_sides_is_a_conflict(bench: Bench) -> None:
    sides: tuple[Spec, Spec, Spec] = (
        {"a": b"1"},
        {"a": b"1", "/a": mode(0o600)},
        {"a": b"2", "/a": mode(0o640)},
    )
    merged = bench.merge(*sides)
    assert kinds(merged) == [("metadata", "a")]
    assert merged.image.root == bench.root(sides[1])  # their content does not come in alone
    settled = bench.entry(bench.merge(*sides, "theirs"), b"a")
    assert (settled.mode & 0o777, bench.read(settled)) == (0o640, b"2")


def test_a_difference_of_times_is_no_conflict_and_the_newer_wins(bench: Bench) -> None:
    base: Spec = {"d/a": b"1"}
    ours: Spec = {**base, "/d": {"mtime": 10}, "/d/a": {"mtime": 30}, "/": {"mtime": 8}}
    theirs: Spec = {**base, "/d": {"mtime": 20}, "/d/a": {"mtime": 25}, "/": {"mtime": 7}}
    merged = bench.merge(base, ours, theirs)
    assert merged.conflicts == []
    assert merged.image.root.mtime == 8
    assert bench.entry(merged, b"d").mtime == 20
    assert bench.entry(merged, b"d/a").mtime == 30


def test_a_time_set_back_on_one_side_stays(bench: Bench) -> None:
    base: Spec = {"a": b"1", "/a": {"mtime": 50}}
    theirs: Spec = {"a": b"1", "/a": {"mtime": 3}}
    for sides in ((base, theirs), (theirs, base)):
        assert bench.entry(bench.merge(base, *sides), b"a").mtime == 3


def test_directory_modes_are_merged_or_conflict_like_file_modes(bench: Bench) -> None:
    def folder(bits: int, **files: bytes) -> Spec:
        paths = {f"d/{name}": content for name, content in files.items()}
        return {"d": None, **paths, "/d": {"mode": stat.S_IFDIR | bits}}

    merged = bench.merge(
        folder(0o755, a=b"1"), folder(0o700, a=b"1", b=b"2"), folder(0o755, a=b"1", c=b"3")
    )
    assert merged.conflicts == []
    assert bench.entry(merged, b"d").mode & 0o777 == 0o700
    assert sorted(bench.files(merged)) == ["d", "d/a", "d/b", "d/c"]
    merged = bench.merge(folder(0o755), folder(0o700, a=b"1"), folder(0o750, b=b"2"))
    assert kinds(merged) == [("metadata", "d")]
    assert sorted(bench.files(merged)) == ["d", "d/a", "d/b"]


def test_holes_go_with_their_content(bench: Bench) -> None:
    holes = bench.objects.hasher.oid(b"holes")
    theirs: Spec = {"a": b"sparse", "/a": {"holes": holes}}
    taken = bench.entry(bench.merge({"a": b"1"}, {"a": b"1", "/a": {"uid": 4}}, theirs), b"a")
    assert (taken.holes, taken.uid) == (holes, 4)
    base, ours = b"1\n2\n3\n", b"one\n2\n3\n"
    mixed = bench.merge({"a": base}, {"a": ours}, {"a": b"1\n2\nthree\n", "/a": {"holes": holes}})
    assert bench.entry(mixed, b"a").holes == b""


# the rest of the image


def test_environment_and_cwd_are_merged_by_key_and_ours_wins(bench: Bench) -> None:
    root = bench.root({})
    base = Image(root, env={"A": "1", "B": "1", "C": "1"}, cwd="x")
    ours = Image(root, env={"A": "2", "B": "1", "D": "ours"}, cwd="x", processes=b"p" * 32)
    theirs = Image(root, env={"A": "3", "B": None, "C": "1", "E": "5"}, cwd="y", system=System("s"))
    merged = merge_images(bench.trees, bench.objects, base=base, ours=ours, theirs=theirs)
    assert merged.image.env == {"A": "2", "B": None, "D": "ours", "E": "5"}
    assert merged.image.cwd == "y"
    assert merged.image.processes == b"p" * 32
    assert merged.image.system is None


# laws

paths = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join)
contents = st.sampled_from([b"", b"1\n", b"1\n2\n3\n", b"1\n2\nC\n", b"A\n2\n3\n", b"\0"])


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    found: Spec = {}
    for path, content in draw(st.dictionaries(paths, contents, max_size=8)).items():
        above = {path.rsplit("/", n)[0] for n in range(1, path.count("/") + 1)}
        if not above & found.keys() and not any(p.startswith(path + "/") for p in found):
            found[path] = content
    return found


@REUSED
@given(base=specs(), ours=specs(), theirs=specs())
def test_merge_is_symmetric_and_keeps_ours_at_conflicts(
    bench: Bench, base: Spec, ours: Spec, theirs: Spec
) -> None:
    assert bench.merge(base, base, theirs).image.root == bench.root(theirs)
    assert bench.merge(base, ours, base).image.root == bench.root(ours)
    assert bench.merge(base, ours, ours).image.root == bench.root(ours)
    merged, swapped = bench.merge(base, ours, theirs), bench.merge(base, theirs, ours)
    assert [c.path for c in merged.conflicts] == [c.path for c in swapped.conflicts]
    if not merged.conflicts:
        assert merged.image == swapped.image
    for path in (conflict.path for conflict in merged.conflicts):
        mine = bench.trees.resolve(bench.root(ours), path.encode())
        assert bench.trees.resolve(merged.image.root, path.encode()) == mine
    taken = bench.merge(base, ours, theirs, "theirs")
    assert all(conflict.settled for conflict in taken.conflicts)


def test_equal_subtrees_are_not_read(bench: Bench, reads: list[Oid]) -> None:
    many = {f"big/{n}/f{m}": b"%d %d" % (n, m) for n in range(20) for m in range(20)}
    base, ours = bench.root({"a": b"1", **many}), bench.root({"a": b"2", **many})
    theirs = bench.root({"a": b"1", "b": b"3", **many})
    reads.clear()
    merged = merge_images(
        Trees(bench.objects),
        bench.objects,
        base=Image(base),
        ours=Image(ours),
        theirs=Image(theirs),
    )
    assert merged.conflicts == []
    assert len(reads) == 3


@pytest.mark.parametrize("side", ["base", "ours", "theirs"])
def test_text_above_four_mebibytes_is_not_merged_line_by_line(bench: Bench, side: str) -> None:
    assert MAX_MERGE_TEXT_BYTES == 4 * 1024 * 1024
    ends = {"base": (b"a\n", b"b\n"), "ours": (b"A\n", b"b\n"), "theirs": (b"a\n", b"B\n")}
    for size, conflicts in (
        (MAX_MERGE_TEXT_BYTES, []),
        (MAX_MERGE_TEXT_BYTES + 1, [("content", "f")]),
    ):
        middle = b"x" * (size - 5) + b"\n"
        specs = {name: {"f": first + middle + last} for name, (first, last) in ends.items()}
        if conflicts:
            for name in set(specs) - {side}:  # only this side is too large
                specs[name] = {"f": ends[name][0] + b"y\n" + ends[name][1]}
        merged = bench.merge(specs["base"], specs["ours"], specs["theirs"])
        assert kinds(merged) == conflicts


def test_results_of_a_merge_cannot_be_changed_in_place(bench: Bench) -> None:
    merged = bench.merge({}, {"a": b"1"}, {"a": b"2"})
    with pytest.raises(AttributeError):
        merged.conflicts = []  # type: ignore[misc]
    with pytest.raises(AttributeError):
        merged.conflicts[0].path = ""  # type: ignore[misc]


@pytest.fixture
def merge(trees: Trees, objects: ObjectStore, make_root: Callable[..., TreeEntry]) -> Merge:
    """merge("a=b:1 c:2", ours, theirs): groups joined by =, after : the content of all.

    In contents | is a newline. Returns path -> content, and the groups of the result.
    """

    def image(text: str) -> Image:
        spec: dict[str, Any] = {}
        groups: list[list[bytes]] = []
        for part in text.split():
            names, content = part.split(":")
            spec |= dict.fromkeys(names.split("="), content.replace("|", "\n").encode())
            if "=" in names:
                groups.append(sorted(name.encode() for name in names.split("=")))
        links = objects.put(Kind.META, encode(sorted(groups))) if groups else b""
        return Image(make_root(spec), links=links)

    def run(
        base: str | None, ours: str, theirs: str, favor: Favor | None = None
    ) -> tuple[dict[str, str], list[str]]:
        merged = merge_images(
            trees,
            objects,
            base=None if base is None else image(base),
            ours=image(ours),
            theirs=image(theirs),
            favor=favor,
        ).image
        found = {
            path.decode(): b"".join(read_file(objects, entry)).decode()
            for path, entry in trees.walk(merged.root)
            if not entry.is_dir
        }
        groups = read_hardlinks(objects, merged.links)
        return found, [b"=".join(group).decode() for group in groups]

    return run


def test_a_merge_without_hardlinks_has_no_groups(merge: Merge) -> None:
    assert merge("a:1", "a:1", "a:2") == ({"a": "2"}, [])


def test_unchanged_groups_stay(merge: Merge) -> None:
    assert merge("a=b:1", "a=b:1 x:1", "a=b:1 y:1")[1] == ["a=b"]


def test_a_hardlink_group_written_by_theirs_stays_one_file(merge: Merge) -> None:
    assert merge("a=b:1", "a=b:1 x:1", "a=b:2") == ({"a": "2", "b": "2", "x": "1"}, ["a=b"])


def test_a_hardlink_added_by_either_side_is_kept(merge: Merge) -> None:
    assert merge("a:1", "a=b:1", "a:1 x:1")[1] == ["a=b"]
    assert merge("a:1", "a:1 x:1", "a=b:1")[1] == ["a=b"]
    assert merge("a=b:1", "a=b=c:1", "a=b=d:1")[1] == ["a=b=c=d"]


def test_a_new_hardlink_follows_the_content_written_by_the_other_side(merge: Merge) -> None:
    assert merge("a:1", "a=b:1", "a:2") == ({"a": "2", "b": "2"}, ["a=b"])
    assert merge("a:1", "a:2", "a=b:1") == ({"a": "2", "b": "2"}, ["a=b"])


def test_a_hardlink_broken_by_one_side_stays_broken(merge: Merge) -> None:
    assert merge("a=b:1", "a:1 b:2", "a=b:1 x:1") == ({"a": "1", "b": "2", "x": "1"}, [])
    assert merge("a=b=c:1", "a=b=c:1 x:1", "a=c:1 b:2")[1] == ["a=c"]
    assert merge("a=b:1", "a=b:1", "a:1 b:1")[1] == []


def test_deleted_names_leave_their_group(merge: Merge) -> None:
    assert merge("a=b=c:1", "a=b=c:1 x:1", "a=b:1")[1] == ["a=b"]
    assert merge("a=b:1", "a=b:1 x:1", "a:1")[1] == []


def test_a_hardlinked_file_changed_on_both_sides_keeps_ours_under_all_names(merge: Merge) -> None:
    """A conflict: ours stays, under all names, as one file."""
    assert merge("a=b:1", "a=b:2", "a=b:3") == ({"a": "2", "b": "2"}, ["a=b"])


def test_text_merged_inside_a_hardlink_group_stays_one_file(merge: Merge) -> None:
    text = "A\n2\nC"
    assert merge("a=b:1|2|3", "a=b:A|2|3", "a=b:1|2|C") == ({"a": text, "b": text}, ["a=b"])


def test_without_a_base_the_hardlink_groups_of_both_sides_stay(merge: Merge) -> None:
    assert merge(None, "a=b:1", "c=d:2")[1] == ["a=b", "c=d"]


def test_hardlink_groups_follow_a_renamed_directory(merge: Merge) -> None:
    assert merge("d/a=d/b:1", "d/a=d/b:1 x:1", "e/a=e/b:1")[1] == ["e/a=e/b"]


def test_first_name_of_a_group_may_be_deleted(merge: Merge) -> None:
    assert merge("a=b:1", "a=b:1 x:1", "b:1") == ({"b": "1", "x": "1"}, [])


@pytest.mark.parametrize("kept", ["a", "b"])
def test_deleted_name_that_favor_brings_back_is_linked_again(merge: Merge, kept: str) -> None:
    """Our side says nothing about the link: it has only one of the two names."""
    found = merge("a=b:1", f"{kept}:1", "a=b:2", "theirs")
    assert found == ({"a": "2", "b": "2"}, ["a=b"])


def test_groups_that_both_sides_kept_stay_beside_new_groups(merge: Merge) -> None:
    same = "a=b:1 c=d:2 e=f:3"
    _, groups = merge(same, f"{same} g=h:4", f"{same} i=j:5")
    assert groups == ["a=b", "c=d", "e=f", "g=h", "i=j"]


@pytest.mark.parametrize("old", ["a", "d"])
def test_new_names_follow_a_written_file_through_a_chain_of_links(merge: Merge, old: str) -> None:
    found, groups = merge(f"{old}:1", "a=b=c=d:1", "a=b=c=d:2")
    assert found == dict.fromkeys("abcd", "2")
    assert groups == ["a=b=c=d"]


def test_link_between_two_files_that_the_other_side_wrote_loses_neither(merge: Merge) -> None:
    assert merge("a:1 b:1", "a:2 b:3", "a=b:1") == ({"a": "2", "b": "3"}, [])
    found, groups = merge("a:1 b:1 c:1 d:1", "a:2 b:3 c:1 d:1", "a=b:1 c=d:1")
    assert found == {"a": "2", "b": "3", "c": "1", "d": "1"}
    assert groups == ["c=d"]


def changed(entry: TreeEntry = ENTRY, **fields: Any) -> TreeEntry:
    return msgspec.structs.replace(entry, **fields)


def no_text(base: TreeEntry, ours: TreeEntry, theirs: TreeEntry) -> TextMerge | None:
    return None


def merge_entries(
    base: TreeEntry | None, ours: TreeEntry, theirs: TreeEntry, **options: Any
) -> EntryMerge:
    return merge_file(
        base,
        ours,
        theirs,
        **{"merge_content": no_text, "put_content": lambda data: b"merged" + data, **options},
    )


entries = st.builds(
    lambda bits, mtime, uid, data: changed(
        mode=stat.S_IFREG | bits, mtime=mtime, uid=uid, data=data * 32, size=data[0]
    ),
    st.sampled_from([0o644, 0o600]),
    st.integers(0, 3),
    st.integers(0, 1),
    st.sampled_from([b"1", b"2", b"3"]),
)


@settings(deadline=None)
@given(base=entries, ours=entries, theirs=entries)
def test_entry_merge_is_symmetric_and_keeps_ours_at_conflicts(
    base: TreeEntry, ours: TreeEntry, theirs: TreeEntry
) -> None:
    assert merge_entries(base, base, theirs) == EntryMerge(theirs)
    assert merge_entries(base, ours, base) == EntryMerge(ours)
    one, two = merge_entries(base, ours, theirs), merge_entries(base, theirs, ours)
    assert one.conflict == two.conflict
    if one.conflict:
        assert (one.entry, two.entry) == (ours, theirs)
    else:
        assert one == two
    assert one.entry.data[0] == one.entry.size


@settings(deadline=None)
@given(base=entries, ours=entries, theirs=entries)
def test_favor_settles_every_conflict_for_the_favored_side(
    base: TreeEntry, ours: TreeEntry, theirs: TreeEntry
) -> None:
    mine = merge_entries(base, ours, theirs, favor="ours")
    other = merge_entries(base, theirs, ours, favor="theirs")
    assert mine == other
    assert mine.entry.data in (ours.data, theirs.data)


def test_merged_text_has_its_own_size_and_no_holes() -> None:
    def text(base: TreeEntry, ours: TreeEntry, theirs: TreeEntry) -> TextMerge | None:
        return TextMerge(b"both")

    ours = changed(data=b"2" * 32, holes=b"h" * 32, mtime=11)
    theirs = changed(data=b"3" * 32, mtime=12)
    verdict = merge_entries(ENTRY, ours, theirs, merge_content=text)
    assert verdict.conflict is None
    expected = changed(data=b"mergedboth", size=4, mtime=12)
    assert verdict.entry == expected


def test_base_of_another_type_counts_as_none() -> None:
    link = TreeEntry(b"f", stat.S_IFLNK | 0o777, 1, data=b"x")
    verdict = merge_entries(link, changed(data=b"2" * 32), changed(data=b"3" * 32))
    assert verdict.conflict == "added"


def test_metadata_without_a_base_takes_the_newer_time_or_conflicts() -> None:
    ours, theirs = changed(mtime=3), changed(mtime=4)
    assert merge_metadata(None, ours, theirs) == EntryMerge(theirs)
    clash = merge_metadata(None, changed(uid=1), changed(uid=2))
    assert clash == EntryMerge(changed(uid=1), "metadata")
    assert merge_metadata(None, changed(uid=1), changed(uid=2), favor="theirs").entry.uid == 2


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (changed(mtime=99), True),
        (changed(holes=b"h" * 32), True),
        (changed(mode=stat.S_IFREG | 0o600), False),
        (changed(xattrs=b"x" * 32), False),
        (changed(data=b"2" * 32), False),
        (changed(mode=stat.S_IFLNK | 0o644), False),
        (changed(rdev=7), False),
    ],
)
def test_only_times_changed_is_true_for_changes_of_times_and_holes(
    entry: TreeEntry, expected: bool
) -> None:
    assert only_times_changed(ENTRY, entry) is expected
    assert only_times_changed(entry, ENTRY) is expected


def test_verdict_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        EntryMerge(ENTRY).conflict = "type"  # type: ignore[misc]

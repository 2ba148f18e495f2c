"""Three-way merge of trees: who changed what, conflicts as data, nothing half applied."""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortet.history.merge.text_merge import Favor
from ortet.history.merge.tree_merge import (
    MAX_MERGE_TEXT_BYTES,
    FileConflict,
    MergedImage,
    merge_images,
)
from ortet.history.records import Image, System, TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.objects.base import ObjectStore
from ortet.objects.blobs import read_file

MakeRoot = Callable[..., TreeEntry]
Spec = dict[str, Any]
REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


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
def test_touching_does_not_keep_what_the_other_side_deleted(bench: Bench, path: str) -> None:
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


def test_times_alone_are_no_conflict_and_the_newer_wins(bench: Bench) -> None:
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

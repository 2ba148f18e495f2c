"""Hardlinks after a merge: one file where a side made it one, never two contents in one group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ortet._util.codec import encode
from ortet.history.merge.text_merge import Favor
from ortet.history.merge.tree_merge import merge_images
from ortet.history.records import Image, TreeEntry
from ortet.history.references import read_hardlinks
from ortet.history.tree.tree import Trees
from ortet.objects.base import Kind, ObjectStore
from ortet.objects.blobs import read_file

Merge = Callable[..., tuple[dict[str, str], list[str]]]


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

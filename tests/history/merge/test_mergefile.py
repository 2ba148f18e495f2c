"""One entry, three versions: each piece of metadata by itself, content never without its size."""

from __future__ import annotations

import stat
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortet.history.merge.text_merge import TextMerge
from ortet.history.merge.tree_merge import (
    EntryMerge,
    merge_file,
    merge_metadata,
    only_times_changed,
)
from ortet.history.records import TreeEntry

BASE = TreeEntry(b"f", stat.S_IFREG | 0o644, 10, size=1, data=b"1" * 32)


def changed(entry: TreeEntry = BASE, **fields: Any) -> TreeEntry:
    return msgspec.structs.replace(entry, **fields)


def no_text(base: TreeEntry, ours: TreeEntry, theirs: TreeEntry) -> TextMerge | None:
    return None


def merge(base: TreeEntry | None, ours: TreeEntry, theirs: TreeEntry, **options: Any) -> EntryMerge:
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
    assert merge(base, base, theirs) == EntryMerge(theirs)
    assert merge(base, ours, base) == EntryMerge(ours)
    one, two = merge(base, ours, theirs), merge(base, theirs, ours)
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
    mine = merge(base, ours, theirs, favor="ours")
    other = merge(base, theirs, ours, favor="theirs")
    assert mine == other
    assert mine.entry.data in (ours.data, theirs.data)


def test_merged_text_has_its_own_size_and_no_holes() -> None:
    def text(base: TreeEntry, ours: TreeEntry, theirs: TreeEntry) -> TextMerge | None:
        return TextMerge(b"both")

    ours = changed(data=b"2" * 32, holes=b"h" * 32, mtime=11)
    theirs = changed(data=b"3" * 32, mtime=12)
    verdict = merge(BASE, ours, theirs, merge_content=text)
    assert verdict.conflict is None
    expected = changed(data=b"mergedboth", size=4, mtime=12)
    assert verdict.entry == expected


def test_base_of_another_type_counts_as_none() -> None:
    link = TreeEntry(b"f", stat.S_IFLNK | 0o777, 1, data=b"x")
    verdict = merge(link, changed(data=b"2" * 32), changed(data=b"3" * 32))
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
def test_only_touched_is_true_for_time_and_hole_changes_alone(
    entry: TreeEntry, expected: bool
) -> None:
    assert only_times_changed(BASE, entry) is expected
    assert only_times_changed(entry, BASE) is expected


def test_verdict_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        EntryMerge(BASE).conflict = "type"  # type: ignore[misc]

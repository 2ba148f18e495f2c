"""One entry, three versions: each piece of metadata by itself, content never without its size."""

from __future__ import annotations

import stat
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortet.history.merge.mergefile import Verdict, merge_file, metadata, only_touched
from ortet.history.merge.text_merge import TextMerge
from ortet.history.records import Entry

BASE = Entry(b"f", stat.S_IFREG | 0o644, 10, size=1, data=b"1" * 32)


def changed(entry: Entry = BASE, **fields: Any) -> Entry:
    return msgspec.structs.replace(entry, **fields)


def no_text(base: Entry, ours: Entry, theirs: Entry) -> TextMerge | None:
    return None


def merge(base: Entry | None, ours: Entry, theirs: Entry, **options: Any) -> Verdict:
    return merge_file(
        base, ours, theirs, **{"text": no_text, "put": lambda data: b"merged" + data, **options}
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
    base: Entry, ours: Entry, theirs: Entry
) -> None:
    assert merge(base, base, theirs) == Verdict(theirs)
    assert merge(base, ours, base) == Verdict(ours)
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
    base: Entry, ours: Entry, theirs: Entry
) -> None:
    mine = merge(base, ours, theirs, favor="ours")
    other = merge(base, theirs, ours, favor="theirs")
    assert mine == other
    assert mine.entry.data in (ours.data, theirs.data)


def test_merged_text_has_its_own_size_and_no_holes() -> None:
    def text(base: Entry, ours: Entry, theirs: Entry) -> TextMerge | None:
        return TextMerge(b"both")

    ours = changed(data=b"2" * 32, holes=b"h" * 32, mtime=11)
    theirs = changed(data=b"3" * 32, mtime=12)
    verdict = merge(BASE, ours, theirs, text=text)
    assert verdict.conflict is None
    expected = changed(data=b"mergedboth", size=4, mtime=12)
    assert verdict.entry == expected


def test_base_of_another_type_counts_as_none() -> None:
    link = Entry(b"f", stat.S_IFLNK | 0o777, 1, data=b"x")
    verdict = merge(link, changed(data=b"2" * 32), changed(data=b"3" * 32))
    assert verdict.conflict == "added"


def test_metadata_without_a_base_takes_the_newer_time_or_conflicts() -> None:
    ours, theirs = changed(mtime=3), changed(mtime=4)
    assert metadata(None, ours, theirs) == Verdict(theirs)
    clash = metadata(None, changed(uid=1), changed(uid=2))
    assert clash == Verdict(changed(uid=1), "metadata")
    assert metadata(None, changed(uid=1), changed(uid=2), favor="theirs").entry.uid == 2


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
def test_only_touched_is_true_for_time_and_hole_changes_alone(entry: Entry, expected: bool) -> None:
    assert only_touched(BASE, entry) is expected
    assert only_touched(entry, BASE) is expected


def test_verdict_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        Verdict(BASE).conflict = "type"  # type: ignore[misc]

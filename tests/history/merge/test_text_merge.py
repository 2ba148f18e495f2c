"""Three-way text merge: laws that hold for all texts, and cases people meet."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortet.history.merge.text_merge import TextConflict, TextMerge, merge_text

texts = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\r\n", b"\n", b"z"]), max_size=12).map(
    b"".join
)


@settings(deadline=None)
@given(base=texts, side=texts)
def test_an_unchanged_side_takes_the_text_of_the_other(base: bytes, side: bytes) -> None:
    assert merge_text(base, base, side).data == side
    assert merge_text(base, side, base).data == side
    assert merge_text(base, side, side).data == side
    assert not merge_text(base, base, side).conflicts


@settings(deadline=None)
@given(base=texts, ours=texts, theirs=texts)
def test_text_merge_is_symmetric(base: bytes, ours: bytes, theirs: bytes) -> None:
    one, two = merge_text(base, ours, theirs), merge_text(base, theirs, ours)
    assert [(c.base, c.ours, c.theirs) for c in one.conflicts] == [
        (c.base, c.theirs, c.ours) for c in two.conflicts
    ]
    if not one.conflicts:
        assert one.data == two.data
    assert one.data == merge_text(base, theirs, ours, favor="theirs").data


@settings(deadline=None)
@given(base=texts, ours=texts, theirs=texts)
def test_conflicts_name_lines_that_are_there_and_differ(
    base: bytes, ours: bytes, theirs: bytes
) -> None:
    end = 0
    for conflict in merge_text(base, ours, theirs).conflicts:
        parts = [
            text.splitlines(keepends=True)[slice(*span)]
            for text, span in ((base, conflict.base), (ours, conflict.ours))
        ]
        other = theirs.splitlines(keepends=True)[slice(*conflict.theirs)]
        assert other not in parts
        assert parts[0] != parts[1]
        assert conflict.base[0] >= end
        end = conflict.base[1]


@settings(deadline=None)
@given(
    head=texts.filter(lambda text: not text.endswith(b"z")),
    tail=texts,
    ours=st.just(b"added by us\n"),
    theirs=st.just(b"added by them\n"),
)
def test_distant_changes_of_both_sides_are_merged(
    head: bytes, tail: bytes, ours: bytes, theirs: bytes
) -> None:
    middle = b"unique line one\nunique line two\n"
    base = head + middle + tail
    merged = merge_text(base, ours + base, head + middle + theirs + tail)
    assert not merged.conflicts
    assert merged.data == ours + head + middle + theirs + tail


BASE = b"one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (b"ONE\ntwo\nthree\n", b"one\ntwo\nTHREE\n", b"ONE\ntwo\nTHREE\n"),
        (b"two\nthree\n", b"one\ntwo\n", b"two\n"),
        (b"zero\none\ntwo\nthree\n", b"one\ntwo\nthree\nfour\n", b"zero\none\ntwo\nthree\nfour\n"),
        (b"one\ntwo\nthree", b"ONE\ntwo\nthree\n", b"ONE\ntwo\nthree"),
        (b"one\n2\nthree\n", b"one\n2\nthree\nfour\n", b"one\n2\nthree\nfour\n"),
    ],
)
def test_changes_to_different_lines_merge_without_conflict(
    ours: bytes, theirs: bytes, expected: bytes
) -> None:
    merged = merge_text(BASE, ours, theirs)
    assert merged.data == expected
    assert merged.conflicts == []


def test_line_endings_are_kept() -> None:
    base = b"one\r\ntwo\r\nthree\r\n"
    merged = merge_text(base, b"ONE\r\ntwo\r\nthree\r\n", b"one\r\ntwo\r\nTHREE\r\n")
    assert merged.data == b"ONE\r\ntwo\r\nTHREE\r\n"


def test_a_line_changed_on_both_sides_is_a_conflict() -> None:
    merged = merge_text(BASE, b"one\nzwei\nthree\n", b"one\ndeux\nthree\n")
    assert merged.conflicts == [TextConflict((1, 2), (1, 2), (1, 2))]
    assert merged.data == b"one\nzwei\nthree\n"
    favored = merge_text(BASE, b"one\nzwei\nthree\n", b"one\ndeux\nthree\nfour\n", favor="theirs")
    assert favored.data == b"one\ndeux\nthree\nfour\n"


def test_different_insertions_at_one_place_are_a_conflict() -> None:
    merged = merge_text(BASE, BASE + b"ours\n", BASE + b"theirs\n")
    assert merged.conflicts == [TextConflict((3, 3), (3, 4), (3, 4))]


def test_binary_files_are_never_merged_by_line() -> None:
    merged = merge_text(b"a\nb\0\nc\n", b"A\nb\0\nc\n", b"a\nb\0\nC\n")
    assert merged.data == b"A\nb\0\nc\n"
    assert merged.conflicts == [TextConflict((0, 0), (0, 0), (0, 0))]
    assert merge_text(b"\0", b"\0a", b"\0b", favor="theirs").data == b"\0b"


def test_changes_far_behind_the_last_change_of_the_other_side_are_merged() -> None:
    base = [b"%d\n" % number for number in range(300)]
    early, late = [b"first\n", *base[1:]], [*base[:-1], b"last\n"]
    both = b"".join([b"first\n", *base[1:-1], b"last\n"])
    for ours, theirs in ((early, late), (late, early)):
        assert merge_text(b"".join(base), b"".join(ours), b"".join(theirs)) == TextMerge(both)


@pytest.mark.parametrize("start", [b"new\none\n", b"new\nand new\none\n", b""])
def test_change_behind_lines_that_the_other_side_added_or_removed_is_merged(start: bytes) -> None:
    base = b"one\n2\n3\n4\nfive\n"
    longer, changed = start + b"2\n3\n4\nfive\n", b"one\n2\n3\n4\nFIVE\n"
    both = TextMerge(start + b"2\n3\n4\nFIVE\n")
    assert merge_text(base, longer, changed) == both
    assert merge_text(base, changed, longer) == both


def test_conflict_of_overlapping_changes_names_all_lines_of_both_sides() -> None:
    base = b"".join(b"%d\n" % number for number in range(9))
    short = base.replace(b"2\n3\n", b"x\n")
    long = base.replace(b"3\n4\n5\n6\n", b"a\nb\n")
    assert merge_text(base, short, long).conflicts == [TextConflict((2, 7), (2, 6), (2, 5))]
    assert merge_text(base, long, short).conflicts == [TextConflict((2, 7), (2, 5), (2, 6))]


def test_results_of_a_text_merge_cannot_be_changed_in_place() -> None:
    merged = merge_text(BASE, BASE + b"ours\n", BASE + b"theirs\n")
    with pytest.raises(AttributeError):
        merged.data = b""  # type: ignore[misc]
    with pytest.raises(AttributeError):
        merged.conflicts[0].base = (0, 0)  # type: ignore[misc]

"""What a stat tells, and how a directory of them is packed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ortet.history.records import TreeEntry
from ortet.machines.capture.stat_index import (
    MAPPED,
    NOT_APPLIED,
    RACY,
    STAT,
    DirectoryNode,
    StatRecord,
    is_dir,
    is_linked,
    is_unchanged,
    keep_unapplied_metadata,
    marks_of,
    stat_record,
    with_mark,
)

FILE: StatRecord = (0o100644, 7, 1, 1, 0, 0, 5, -1, 2)


@pytest.mark.root
def test_every_metadata_change_changes_the_seen_stat(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("f")
    states = [stat_record(file.stat())]
    for change in (
        lambda: file.write_text("g"),
        lambda: file.chmod(0o600),
        lambda: os.utime(file, ns=(0, 1)),
        lambda: os.chown(file, 1, 2),
        lambda: os.link(file, tmp_path / "g"),
        lambda: os.setxattr(file, "user.x", b"1"),
    ):
        change()
        states.append(stat_record(file.stat()))
    assert len(set(states)) == len(states)


def test_marks_make_it_unequal_but_not_other(tmp_path: Path) -> None:
    st = tmp_path.stat()
    was = stat_record(st)
    assert is_unchanged(was, st) and marks_of(was) == 0
    odd = with_mark(was, NOT_APPLIED)
    assert odd != was and is_unchanged(odd, st) and marks_of(odd) == NOT_APPLIED
    racy = with_mark(odd, RACY)
    assert not is_unchanged(racy, st) and marks_of(racy) == NOT_APPLIED | RACY
    assert not is_unchanged((), st) and not is_unchanged(was, None)
    assert with_mark((), RACY) == ()


def test_is_linked_and_is_dir_read_the_packed_stat() -> None:
    linked = (*FILE[:3], 2, *FILE[4:])
    folder = (0o040755, *linked[1:])
    assert (is_linked(FILE), is_linked(linked), is_linked(folder)) == (False, True, False)
    assert (is_dir(FILE), is_dir(folder)) == (False, True)
    assert not is_linked(()) and not is_dir(())


def test_carry_is_field_by_field() -> None:
    old = TreeEntry(b"x", 0o100755, 10, uid=1, gid=2)
    was: StatRecord = (0o100700, 0, 0, 1, 7, 8, 0, 11, 0, NOT_APPLIED)
    now = TreeEntry(b"x", 0o100700, 12, uid=7, gid=9)
    assert keep_unapplied_metadata(now, was, old) == TreeEntry(b"x", 0o100755, 12, uid=1, gid=9)
    assert keep_unapplied_metadata(now, was, None) == now
    link = TreeEntry(b"x", 0o120777, 12, uid=7)
    assert keep_unapplied_metadata(link, was, old) == link


def test_packed_and_unpacked_it_is_the_same() -> None:
    node = DirectoryNode()
    node.put("plain", FILE)
    node.put("raw\udcff", (*FILE, MAPPED))
    node.put("linked", (*FILE[:3], 3, *FILE[4:]))
    node.put("huge", (0o100644, 2**64 - 1, *FILE[2:]))
    again = DirectoryNode(node.pack())
    assert again.names() == ["plain", "raw\udcff", "linked", "huge"]
    assert again.linked == {"linked"}
    assert again.stats == node.stats
    assert again.linked == {"linked"}
    assert again.pack() == node.pack()


def test_times_of_another_millennium_are_packed_apart() -> None:
    node = DirectoryNode()
    node.put("now", FILE)
    node.put("far", (*FILE[:7], 10**20, FILE[8], NOT_APPLIED))
    node.put("early", (*FILE[:7], -(10**20), FILE[8]))
    again = DirectoryNode(node.pack())
    assert again.stats == node.stats


def test_changing_a_packed_node_unpacks_it() -> None:
    node = DirectoryNode(DirectoryNode().pack())
    assert node.names() == []
    node.put("a", FILE)
    assert node.packed is None
    assert node.pack().stats == STAT.pack(*FILE)
    node.drop("a")
    node.drop("never")
    assert node.pack().names == b""

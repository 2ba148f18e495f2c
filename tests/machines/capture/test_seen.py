"""What a stat tells, and how a directory of them is packed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ortet.history.records import Entry
from ortet.machines.capture.seen import (
    MAPPED,
    ODD,
    RACY,
    STAT,
    Node,
    Seen,
    carry,
    is_dir,
    is_linked,
    is_same,
    mark_of,
    marked,
    seen,
)

FILE: Seen = (0o100644, 7, 1, 1, 0, 0, 5, -1, 2)


@pytest.mark.root
def test_every_metadata_change_changes_the_seen_stat(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("f")
    states = [seen(file.stat())]
    for change in (
        lambda: file.write_text("g"),
        lambda: file.chmod(0o600),
        lambda: os.utime(file, ns=(0, 1)),
        lambda: os.chown(file, 1, 2),
        lambda: os.link(file, tmp_path / "g"),
        lambda: os.setxattr(file, "user.x", b"1"),
    ):
        change()
        states.append(seen(file.stat()))
    assert len(set(states)) == len(states)


def test_marks_make_it_unequal_but_not_other(tmp_path: Path) -> None:
    st = tmp_path.stat()
    was = seen(st)
    assert is_same(was, st) and mark_of(was) == 0
    odd = marked(was, ODD)
    assert odd != was and is_same(odd, st) and mark_of(odd) == ODD
    racy = marked(odd, RACY)
    assert not is_same(racy, st) and mark_of(racy) == ODD | RACY
    assert not is_same((), st) and not is_same(was, None)
    assert marked((), RACY) == ()


def test_is_linked_and_is_dir_read_the_packed_stat() -> None:
    linked = (*FILE[:3], 2, *FILE[4:])
    folder = (0o040755, *linked[1:])
    assert (is_linked(FILE), is_linked(linked), is_linked(folder)) == (False, True, False)
    assert (is_dir(FILE), is_dir(folder)) == (False, True)
    assert not is_linked(()) and not is_dir(())


def test_carry_is_field_by_field() -> None:
    old = Entry(b"x", 0o100755, 10, uid=1, gid=2)
    was: Seen = (0o100700, 0, 0, 1, 7, 8, 0, 11, 0, ODD)
    now = Entry(b"x", 0o100700, 12, uid=7, gid=9)
    assert carry(now, was, old) == Entry(b"x", 0o100755, 12, uid=1, gid=9)
    assert carry(now, was, None) == now
    link = Entry(b"x", 0o120777, 12, uid=7)
    assert carry(link, was, old) == link


def test_packed_and_unpacked_it_is_the_same() -> None:
    node = Node()
    node.put("plain", FILE)
    node.put("raw\udcff", (*FILE, MAPPED))
    node.put("linked", (*FILE[:3], 3, *FILE[4:]))
    node.put("huge", (0o100644, 2**64 - 1, *FILE[2:]))
    again = Node(node.pack())
    assert again.names() == ["plain", "raw\udcff", "linked", "huge"]
    assert again.linked == {"linked"}
    assert again.seen == node.seen
    assert again.linked == {"linked"}
    assert again.pack() == node.pack()


def test_times_of_another_millennium_are_packed_apart() -> None:
    node = Node()
    node.put("now", FILE)
    node.put("far", (*FILE[:7], 10**20, FILE[8], ODD))
    node.put("early", (*FILE[:7], -(10**20), FILE[8]))
    again = Node(node.pack())
    assert again.seen == node.seen


def test_changing_a_packed_node_unpacks_it() -> None:
    node = Node(Node().pack())
    assert node.names() == []
    node.put("a", FILE)
    assert node.packed is None
    assert node.pack().stats == STAT.pack(*FILE)
    node.drop("a")
    node.drop("never")
    assert node.pack().names == b""

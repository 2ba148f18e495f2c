"""Rooms that are left: what they held is free, at once or as soon as it can be."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.locking import locked
from tests.fixtures.rooms import Make, begin, said, say

import ortet
from ortet._util.deadlines import patient
from ortet.hub.hub import Hub
from ortet.server.session_pool import readers
from ortet.server.session_pool.pool import Rooms


def test_a_lease_that_could_not_be_given_back_is_taken_again(make: Make, tmp_path: Path) -> None:
    told: list[str] = []
    rooms = make(patience=0.3, told=lambda what, _error: told.append(what))
    id_ = begin(rooms)
    say(rooms, id_, "before")
    row = rooms.row(id_)
    with locked(tmp_path / "store" / "catalog.db"), patient(0.1), rooms.aside(row):
        assert not rooms.opened()  # it was left, and nothing could be written
    say(rooms, id_, "after")
    assert said(rooms, id_) == ["before", "after"]
    other = make(patience=30.0)  # nor does it stay ours for ever
    say(other, id_, "elsewhere")
    assert said(rooms, id_) == ["before", "after", "elsewhere"]


def test_hubs_of_released_sessions_are_reused(tmp_path: Path) -> None:
    opened: list[Hub] = []

    def open_hub() -> Hub:
        opened.append(ortet.open(tmp_path / "store"))
        return opened[-1]

    rooms = Rooms(open_hub)
    ids = [begin(rooms, name) for name in ("one", "two", "three")]
    count = len(opened)
    for _ in range(3):
        for id_ in ids:
            with rooms.aside(rooms.row(id_)):
                pass
            say(rooms, id_, "again")
    assert len(opened) <= count + 1  # to open one reads what all writers of the store have written
    assert [len(said(rooms, id_)) for id_ in ids] == [3, 3, 3]
    assert rooms.close() == 0
    for hub in opened:
        assert not hub.has_open_sessions
    with ortet.open(tmp_path / "store") as hub:
        assert [hub.session(name).say("user", "free") for name in ("one", "two", "three")]


def test_hubs_that_nobody_needs_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Hub] = []

    def open_hub() -> Hub:
        opened.append(ortet.open(tmp_path / "store"))
        return opened[-1]

    kept = readers.Readers(open_hub)
    with kept.lent() as one, kept.lent() as two:
        assert one is not two
    kept.rest()
    with kept.lent():
        assert len(opened) == 2
    monkeypatch.setattr(readers, "_REST", -1.0)
    kept.rest()
    with kept.lent():
        assert len(opened) == 3
    kept.close()

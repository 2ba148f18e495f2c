"""Released sessions: their leases and hubs are free at once, or as soon as the store allows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.locking import locked
from tests.fixtures.rooms import Make, begin, said, say

import ortet
from ortet._util.lock_timeout import lock_timeout
from ortet.hub.hub import Hub
from ortet.server.session_pool import readers
from ortet.server.session_pool.pool import SessionPool


def test_lease_that_could_not_be_released_is_released_before_the_next_open(
    make: Make, tmp_path: Path
) -> None:
    rooms = make(patience=0.3)
    id_ = begin(rooms)
    say(rooms, id_, "before")
    row = rooms.row(id_)
    with (
        locked(tmp_path / "store" / "catalog.db"),
        lock_timeout(0.1),
        rooms.with_session_closed(row),
    ):
        assert not rooms.open_slots()  # it was left, and nothing could be written
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

    rooms = SessionPool(open_hub)
    ids = [begin(rooms, name) for name in ("one", "two", "three")]
    count = len(opened)
    for _ in range(3):
        for id_ in ids:
            with rooms.with_session_closed(rooms.row(id_)):
                pass
            say(rooms, id_, "again")
    assert len(opened) <= count + 1  # to open one reads what all writers of the store have written
    assert [len(said(rooms, id_)) for id_ in ids] == [3, 3, 3]
    assert rooms.close() == 0
    for hub in opened:
        assert not hub.internals.has_open_sessions
    with ortet.open(tmp_path / "store") as hub:
        assert [hub.session(name).say("user", "free") for name in ("one", "two", "three")]


def test_idle_hubs_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Hub] = []

    def open_hub() -> Hub:
        opened.append(ortet.open(tmp_path / "store"))
        return opened[-1]

    kept = readers.HubPool(open_hub)
    with kept.borrow() as one, kept.borrow() as two:
        assert one is not two
    kept.close_idle()
    with kept.borrow():
        assert len(opened) == 2
    monkeypatch.setattr(readers, "_IDLE_SECONDS", -1.0)
    kept.close_idle()
    with kept.borrow():
        assert len(opened) == 3
    kept.close()

"""The paths of many sessions at once: those that each has by itself, as they are now."""

from __future__ import annotations

from pathlib import Path

import pytest

import ortet
from ortet.journal.event_log import EventLog
from ortet.sessions import table as module
from ortet.sessions.table import TimelinePaths


def _one_by_one(hub: ortet.Hub) -> list[list[object]]:
    minds = hub.internals.session_manager
    return [
        list(
            EventLog(
                hub.catalog, hub.objects, minds.services.chain, timeline=row.timeline
            ).timeline_spans()
        )
        for row in minds.all()
    ]


def _at_once(hub: ortet.Hub, paths: TimelinePaths) -> list[list[object]]:
    return [
        list(found)
        for found in paths.to_ends([row.timeline for row in hub.internals.session_manager.all()])
    ]


def test_paths_of_all_sessions_equal_the_path_of_each_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forks of forks, a fork that said nothing, a session gone back and one removed."""
    monkeypatch.setattr(module, "_PAGE", 2)
    with ortet.open(tmp_path / "store") as hub:
        paths = TimelinePaths(hub.catalog)
        assert _at_once(hub, paths) == []
        first = hub.session("first")
        first.say("user", "one")
        early = first.commit("early")
        first.say("user", "two")
        (fork,) = first.fork(1, machine=False)
        assert _at_once(hub, paths) == _one_by_one(hub)
        fork.say("user", "three")
        fork.fork(2, machine=False)
        hub.session("other").say("user", "four")
        assert _at_once(hub, paths) == _one_by_one(hub)
        first.restore(early.oid)
        assert _at_once(hub, paths) == _one_by_one(hub)
        first.say("user", "five")
        hub.session("silent")
        found = _at_once(hub, paths)
        assert found == _one_by_one(hub)
        assert len(found) == 6
        assert max(map(len, found)) >= 3

"""A session that another process removes while this one reads all of them: it is not there, and
nothing is damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.stores import Open

from ortet.errors import NotFound
from ortet.hub.hub import Hub
from ortet.journal.event_log import EventLog
from ortet.sessions.table import SessionTable

Gone = Callable[..., None]


@pytest.fixture
def gone(hub: Hub, opened: Open, monkeypatch: pytest.MonkeyPatch) -> Gone:
    """Another process removes a session right behind the n-th call of a method."""
    for name in ("a", "b"):
        with hub.session(name) as session:
            session.say("user", f"sardines of {name}")
            session.commit()
            session.say("user", f"more sardines of {name}")
    other = opened()

    def arm(kind: type, name: str, calls: int, session: str = "b") -> None:
        method, left = getattr(kind, name), list(range(calls))

        def called(self: Any, *args: Any) -> Any:
            found = method(self, *args)
            if left and not left.pop():
                other.remove(session)
            return found

        monkeypatch.setattr(kind, name, called)

    return arm


def test_recall_skips_a_session_removed_during_the_call(hub: Hub, gone: Gone) -> None:
    gone(SessionTable, "all", 1)
    assert {hit.source.name for hit in hub.recall("sardines")} == {"a"}


def test_reading_a_session_removed_during_the_call_is_not_found(hub: Hub, gone: Gone) -> None:
    view = hub.get("b")
    gone(EventLog, "timeline_spans", 1)
    with pytest.raises(NotFound) as caught:
        view.messages()
    assert caught.value.kind == "no_timeline"


def test_get_of_a_session_removed_during_the_call_is_not_found(hub: Hub, gone: Gone) -> None:
    gone(SessionTable, "get", 1)
    with pytest.raises(NotFound) as caught:
        hub.get("b")
    assert caught.value.kind == "no_session"


@pytest.mark.parametrize("calls", [1, 2])
def test_sweep_succeeds_if_a_session_is_removed_during_it(hub: Hub, gone: Gone, calls: int) -> None:
    gone(SessionTable, "all", calls)
    hub.sweep(min_garbage=0.0)
    said = [message.content for message in hub.get("a").messages()]
    assert said == ["sardines of a", "more sardines of a"]


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5])
def test_verify_succeeds_if_a_session_is_removed_during_it(
    hub: Hub, gone: Gone, calls: int
) -> None:
    gone(SessionTable, "all", calls)
    assert hub.verify().problems == []


def test_remove_succeeds_if_a_sibling_fork_is_removed_during_it(hub: Hub, gone: Gone) -> None:
    with hub.session("c") as session:
        session.say("user", "one")
        forks = session.fork(2, machine=False)
    names = [fork.name for fork in forks]
    for fork in forks:
        fork.pause()
    gone(SessionTable, "all", 1, names[1])
    hub.remove(names[0])
    assert {row.name for row in hub.sessions()} == {"a", "b", "c"}
    assert [message.content for message in hub.get("c").messages()] == ["one"]

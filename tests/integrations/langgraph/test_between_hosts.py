"""Threads of a store that hosts share: what a saver knows of one is no more than a lease lets it
know, and nothing is asked of the database that the lease has said already."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from tests.fixtures.checkpoints import OF, put
from tests.fixtures.stores import OpenAs

from ortet.backends.postgres.connection import PostgresClient
from ortet.hub.hub import Hub
from ortet.integrations.langgraph import OrtetSaver

SIZE = 40


@pytest.fixture
def hosts(host: OpenAs) -> list[Hub]:
    return [host("one"), host("two")]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this thread asks of the database: others keep leases meanwhile."""
    found, run, mine = list[str](), PostgresClient.run, threading.get_ident()

    def counted(self: PostgresClient, statement: str, *args: Any, **given: Any) -> Any:
        if threading.get_ident() == mine:
            found.append(statement)
        return run(self, statement, *args, **given)

    monkeypatch.setattr(PostgresClient, "run", counted)
    return found


def latest(saver: OrtetSaver) -> tuple[Any, list[AnyMessage]]:
    found = saver.get_tuple(OF)
    assert found is not None
    return found.config, found.checkpoint["channel_values"]["messages"]


def test_hosts_that_take_turns_see_each_others_messages(hosts: list[Hub]) -> None:
    messages: list[AnyMessage] = [HumanMessage(f"said {n}", id=str(n)) for n in range(SIZE)]
    with OrtetSaver(hosts[0]) as one, OrtetSaver(hosts[1]) as two:
        put(one, OF, {"messages": messages})
        for turn in range(2, 8):
            saver, other = (one, two) if turn % 3 else (two, one)
            on, found = latest(saver)
            assert found == messages
            messages = [*found, HumanMessage(f"turn {turn}", id=f"turn {turn}")]
            if turn == 5:
                messages[3].content = "rewritten"
            on = put(saver, on, {"messages": messages}, version=turn)
            saver.put_writes(on, [("note", turn)], f"task {turn}")
            assert latest(other)[1] == messages
    with OrtetSaver(hosts[1]) as cold:
        assert latest(cold)[1] == messages


def test_a_thread_held_by_lease_is_not_read_from_the_database(
    hosts: list[Hub], asked: list[str]
) -> None:
    messages: list[AnyMessage] = [HumanMessage(f"said {n}", id=str(n)) for n in range(SIZE)]
    with OrtetSaver(hosts[0]) as saver:
        on = put(saver, OF, {"messages": messages})
        for turn in range(2, 5):
            asked.clear()
            on, found = latest(saver)
            assert len([one for one in asked if "FROM leases" in one]) == 1
            assert not [one for one in asked if "floors" in one or "events" in one]
            asked.clear()
            messages = [*found, HumanMessage(f"turn {turn}", id=f"turn {turn}")]
            on = put(saver, on, {"messages": messages}, version=turn)
            assert len([one for one in asked if "SELECT append" in one]) == 1
            assert not [one for one in asked if "floors" in one or "FROM events" in one]

"""Adapters of several hosts on one store: who asks for a session gets it as soon as it is free, and
also where no signal leads from one to the other."""

from __future__ import annotations

import pytest
from tests.fixtures.stores import OpenAs

from ortet.backends.local.signal import ProcessSignal
from ortet.config import open_shared_store as sharing
from ortet.hub.hub import Hub
from ortet.integrations._shared.session_pool import AdapterSessionPool

LONG = 3600.0
"""Seconds that a session stays open which nobody asks for: longer than any test."""


@pytest.fixture(params=["heard", "deaf"])
def hosts(
    request: pytest.FixtureRequest, host: OpenAs, monkeypatch: pytest.MonkeyPatch
) -> list[Hub]:
    if request.param == "deaf":
        monkeypatch.setattr(sharing, "open_signal", lambda *_, **__: ProcessSignal())
    return [host("one"), host("two")]


def test_a_session_goes_back_and_forth(hosts: list[Hub]) -> None:
    lent = [AdapterSessionPool(hub, lease_timeout=60.0, idle_timeout=LONG) for hub in hosts]
    try:
        for number in range(6):
            with lent[number % 2].writing("s") as session:
                session.say("user", f"turn {number}")
        with lent[0].reading("s") as view:
            told = [message.content for message in view.messages()]
        assert told == [f"turn {number}" for number in range(6)]
        assert hosts[0].catalog.rows("wanted") == []
    finally:
        for each in lent:
            each.close()

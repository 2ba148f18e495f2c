"""What an adapter uses is archived, or its store is taken away, while it does."""

from __future__ import annotations

import pytest

from ortet.errors import Conflict
from ortet.session.hub import Hub
from ortet.surface.lent import Lent


def said(hub: Hub, name: str) -> list[str]:
    return [message.content for message in hub.get(name).messages()]


def test_a_session_that_is_lent_can_be_archived(hub: Hub) -> None:
    lent = Lent(hub, turn=0.0)
    with lent.writing("a") as session:
        session.say("user", "one")
        assert session.status == "active"
    hub.archive(hub.get("a").id)
    with pytest.raises(Conflict, match="unarchive") as refused, lent.writing("a"):
        pass
    assert refused.value.kind == "session_closed"
    hub.unarchive(hub.get("a").id)
    with lent.writing("a") as session:
        session.say("user", "two")
    assert said(hub, "a") == ["one", "two"]


def test_a_session_that_is_at_work_cannot(hub: Hub) -> None:
    with hub.session("a") as mine:
        with pytest.raises(Conflict, match="active"):
            hub.archive(mine.id)
        mine.say("user", "on")

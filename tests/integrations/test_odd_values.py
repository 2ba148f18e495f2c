"""Data that no store can hold, or that a framework forgets, whichever adapter it is given to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agent_framework import Message
from google.adk.events import Event, EventActions

from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.integrations.adk import OrtetSessionService
from ortet.integrations.agent_framework import OrtetHistoryProvider
from ortet.integrations.langgraph import OrtetStore
from ortet.integrations.openai_agents import OrtetSession


def endless() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


def deep() -> Any:
    found: Any = 1
    for _ in range(10_000):
        found = {"a": found}
    return found


@pytest.mark.parametrize("value", [endless(), deep()], ids=["endless", "deep"])
def test_circular_data_is_refused_and_its_key_is_named(hub: Hub, value: Any) -> None:
    item: Any = {"role": "user", "content": "x", "odd": value}
    with pytest.raises(Invalid, match="item 0, at odd"):
        asyncio.run(OrtetSession("one", hub).add_items([item]))
    said = Message("user", ["x"], additional_properties={"odd": value})
    with pytest.raises(Invalid, match=r"message 0, at additional_properties\.odd"):
        asyncio.run(OrtetHistoryProvider(hub).save_messages("two", [said]))
    with pytest.raises(Invalid, match=r"item 'key' in a\.b: .*nested"):
        OrtetStore(hub).put(("a", "b"), "key", {"odd": value})


def test_tuples_in_properties_are_kept(hub: Hub) -> None:
    provider = OrtetHistoryProvider(hub)
    given = {"pair": (1, 2), "more": {"of": [(3,), 4]}}
    asyncio.run(provider.save_messages("x", [Message("user", ["hi"], additional_properties=given)]))
    (found,) = asyncio.run(provider.get_messages("x"))
    assert found.additional_properties == {"pair": [1, 2], "more": {"of": [[3], 4]}}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"deep": [-float("inf")]}])
@pytest.mark.parametrize("prefix", ["", "user:", "app:"])
def test_nan_and_infinity_are_refused_and_their_key_is_named(
    hub: Hub, value: Any, prefix: str
) -> None:
    me: dict[str, Any] = {"app_name": "app", "user_id": "ann"}

    async def go() -> None:
        service, state = OrtetSessionService(hub), {f"{prefix}score": value}
        with pytest.raises(Invalid, match=f"'{prefix}score'"):
            await service.create_session(**me, session_id="x", state=state)
        session = await service.create_session(**me, session_id="x")
        event = Event(author="a", actions=EventActions(state_delta=state))
        with pytest.raises(Invalid, match=f"'{prefix}score'"):
            await service.append_event(session, event)
        found = await service.get_session(**me, session_id="x")
        assert found is not None and found.state == {} and found.events == []

    asyncio.run(go())


def test_conversations_without_an_id_are_refused(hub: Hub) -> None:
    with pytest.raises(Invalid, match="session_id is empty"):
        OrtetSession("", hub)
    service = OrtetSessionService(hub)
    odd: Any = {"app_name": "app", "user_id": "ann", "session_id": 7}
    for act in (service.create_session, service.get_session, service.delete_session):
        with pytest.raises(Invalid, match="session_id=7: give some text"):
            asyncio.run(act(**odd))

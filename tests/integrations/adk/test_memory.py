"""OrtetMemoryService finds what was added, and nothing else; ADK's own as well, where it can."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.events import Event
from google.adk.memory import BaseMemoryService, InMemoryMemoryService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions import InMemorySessionService
from google.genai import types

from ortet.hub.hub import Hub
from ortet.integrations.adk import OrtetMemoryService, OrtetSessionService
from ortet.integrations.adk.sessions import adk_session_name

ME: dict[str, Any] = {"app_name": "app", "user_id": "ann"}
KINDS = pytest.mark.parametrize("kind", ["ortet", "ortet beside others", "memory"])


def services(kind: str, hub: Hub) -> tuple[Any, BaseMemoryService]:
    if kind == "ortet":
        return OrtetSessionService(hub), OrtetMemoryService(hub)
    if kind == "memory":
        return InMemorySessionService(), InMemoryMemoryService()
    return InMemorySessionService(), OrtetMemoryService(hub)


def said(text: str, author: str = "user") -> Event:
    role = "user" if author == "user" else "model"
    content = types.Content(role=role, parts=[types.Part(text=text)])
    return Event(author=author, invocation_id="i", content=content)


def texts(found: Any) -> set[str]:
    return {one.content.parts[0].text for one in found.memories}


@KINDS
def test_a_session_is_found_once_it_was_added(kind: str, hub: Hub) -> None:
    async def through() -> None:
        sessions, memory = services(kind, hub)

        async def search(query: str, **who: str) -> set[str]:
            found = texts(await memory.search_memory(**{**ME, **who}, query=query))
            return {one for one in found if query in one}  # recall gives what was said next, too

        assert await search("herons") == set()
        session = await sessions.create_session(**ME, session_id="s")
        await sessions.append_event(session, said("the herons nest on the island"))
        await sessions.append_event(session, said("noted", author="guide"))
        assert await search("herons") == set()
        await memory.add_session_to_memory(session)
        await memory.add_session_to_memory(session)
        found = await memory.search_memory(**ME, query="where do herons nest?")
        one = found.memories[0]
        assert one.content == session.events[0].content
        assert (one.author, one.id) == ("user", session.events[0].id)
        assert one.timestamp is not None
        assert one.timestamp.startswith("20")
        await sessions.append_event(session, said("herons eat frogs"))
        assert len(await search("herons")) == 1
        again = await sessions.get_session(**ME, session_id="s")
        await memory.add_session_to_memory(again)
        assert len(await search("herons")) == 2
        assert await search("herons", user_id="bob") == set()
        assert await search("herons", app_name="other") == set()
        for nothing in ("zebras", ""):
            assert (await memory.search_memory(**ME, query=nothing)).memories == []

    asyncio.run(through())


@KINDS
def test_added_events_are_found_and_deleted_memories_stay_deleted(kind: str, hub: Hub) -> None:
    async def through() -> None:
        sessions, memory = services(kind, hub)
        session = await sessions.create_session(**ME, session_id="s")
        events = [said("a red kite"), said("a red fox"), Event(author="user")]
        for event in events:
            await sessions.append_event(session, event)
        add: dict[str, Any] = {"events": [events[1], events[2]], "session_id": "s"}
        await memory.add_events_to_memory(**ME, **add)
        await memory.add_events_to_memory(**ME, **add)
        assert texts(await memory.search_memory(**ME, query="red")) == {"a red fox"}
        await memory.add_session_to_memory(session)
        assert len((await memory.search_memory(**ME, query="red")).memories) == 2
        await memory.delete_memory(**ME, memory_id=events[1].id)
        await memory.delete_memory(**ME, memory_id=None)
        assert texts(await memory.search_memory(**ME, query="red")) == {"a red kite"}
        await memory.add_session_to_memory(session)
        await memory.add_events_to_memory(**ME, **add)
        assert texts(await memory.search_memory(**ME, query="red")) == {"a red kite"}

    asyncio.run(through())


def test_a_recreated_session_is_not_found_before_it_is_added(hub: Hub) -> None:
    async def through() -> None:
        sessions, memory = OrtetSessionService(hub), OrtetMemoryService(hub)
        for text, found in (("a red kite", {"a red kite"}), ("a red fox", set[str]())):
            session = await sessions.create_session(**ME, session_id="s")
            await sessions.append_event(session, said(text))
            if found:
                await memory.add_session_to_memory(session)
            assert texts(await memory.search_memory(**ME, query="red")) == found
            await sessions.delete_session(**ME, session_id="s")

    asyncio.run(through())


def test_added_memories_are_stored_as_facts(hub: Hub) -> None:
    async def through() -> None:
        memory = OrtetMemoryService(hub)
        content = types.Content(role="user", parts=[types.Part(text="ann is allergic to nuts")])
        given = MemoryEntry(content=content, author="nurse", custom_metadata={"n": 1})
        await memory.add_memory(**ME, memories=[given], custom_metadata={"ttl": "1d"})
        (found,) = (await memory.search_memory(**ME, query="allergic")).memories
        assert (found.content, found.author) == (content, "nurse")
        assert found.custom_metadata == {"ttl": "1d", "n": 1}
        await memory.delete_memory(**ME, memory_id=found.id)
        assert (await memory.search_memory(**ME, query="allergic")).memories == []

    asyncio.run(through())
    view = hub.get(adk_session_name("app", "ann"))
    assert [fact.text for fact in view.facts(past=True)] == ["ann is allergic to nuts"]
    assert view.facts() == []
    hub.verify()


def test_search_returns_at_most_k_memories_best_first(hub: Hub) -> None:
    async def through() -> None:
        memory = OrtetMemoryService(hub, k=3)
        events = [said(f"note {n} about otters") for n in range(6)]
        events.append(said("otters, otters and their holts"))
        await memory.add_events_to_memory(**ME, events=events)
        found = (await memory.search_memory(**ME, query="otters holts")).memories
        assert len(found) == 3
        assert found[0].id == events[-1].id

    asyncio.run(through())

"""Who is cancelled in the middle of a write: it is done whole, once, and before the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Event, Thread
from typing import Any

import pytest
from tests.fixtures.waiting import loop_turns

from ortet.hub.hub import Hub
from ortet.integrations.langgraph import OrtetStore


@contextmanager
def held(lock: AbstractContextManager[Any]) -> Iterator[Event]:
    """Whatever is written waits, until the event that this gives is set."""
    begun, over = Event(), Event()

    def hold() -> None:
        with lock:
            begun.set()
            over.wait()

    thread = Thread(target=hold)
    thread.start()
    begun.wait()
    try:
        yield over
    finally:
        over.set()
        thread.join()


async def cancelled(
    lock: AbstractContextManager[Any], write: Callable[[], Coroutine[Any, Any, Any]]
) -> None:
    """Cancelled twice while it waits: it ends when it is done."""
    with held(lock) as over:
        task = asyncio.create_task(write())
        for _ in range(2):
            await loop_turns(10)
            task.cancel()
        await loop_turns(10)
        assert not task.done()
        over.set()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_a_cancelled_agent_framework_save_is_stored_once_before_the_next(hub: Hub) -> None:
    from agent_framework import Message

    from ortet.integrations.agent_framework import OrtetHistoryProvider

    provider = OrtetHistoryProvider(hub)

    async def work() -> list[str]:
        await cancelled(
            provider._pool.hub(), lambda: provider.save_messages("x", [Message("user", ["1"])])
        )
        await provider.save_messages("x", [Message("user", ["2"])])
        return [one.text for one in await provider.get_messages("x")]

    assert asyncio.run(work()) == ["1", "2"]


def test_a_cancelled_agent_framework_checkpoint_is_stored_once(hub: Hub) -> None:
    from agent_framework import WorkflowCheckpoint

    from ortet.integrations.agent_framework import OrtetCheckpointStorage

    storage = OrtetCheckpointStorage(hub)
    first, second = (WorkflowCheckpoint("w", "hash", checkpoint_id=id_) for id_ in "12")

    async def work() -> list[str]:
        await cancelled(storage._pool.hub(), lambda: storage.save(first))
        await storage.save(second)
        return await storage.list_checkpoint_ids(workflow_name="w")

    assert asyncio.run(work()) == ["1", "2"]


def test_a_cancelled_adk_append_is_stored_once_before_the_next(hub: Hub) -> None:
    from google.adk.events import Event as AdkEvent

    from ortet.integrations.adk import OrtetSessionService

    service = OrtetSessionService(hub)

    async def work() -> tuple[list[str], list[str]]:
        session = await service.create_session(app_name="a", user_id="u", session_id="x")
        events = [AdkEvent(author="user", id=id_) for id_ in "12"]
        await cancelled(service._pool.hub(), lambda: service.append_event(session, events[0]))
        await service.append_event(session, events[1])  # it knows of the first
        stored = await service.get_session(app_name="a", user_id="u", session_id="x")
        assert stored is not None
        return [one.id for one in session.events], [one.id for one in stored.events]

    assert asyncio.run(work()) == (["1", "2"], ["1", "2"])


def test_a_cancelled_pydantic_ai_run_is_stored_once(hub: Hub) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.test import TestModel

    from ortet.integrations.pydantic_ai import OrtetHistory

    chat = OrtetHistory("x", hub)
    agent = Agent(TestModel(custom_output_text="two"))
    really = chat._store

    async def work() -> None:
        loop, storing, done = asyncio.get_running_loop(), asyncio.Event(), Event()

        def store(*args: Any, **given: Any) -> int:
            loop.call_soon_threadsafe(storing.set)
            done.wait()
            return really(*args, **given)

        chat._store = store  # type: ignore[method-assign]
        task = asyncio.create_task(chat.run(agent, "one"))
        await storing.wait()
        task.cancel()
        await loop_turns()
        done.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    assert [message.content for message in hub.get("x").messages()] == ["one", "two"]


def test_a_cancelled_langgraph_store_put_is_stored_before_the_next(hub: Hub) -> None:
    memory = OrtetStore(hub)

    async def work() -> Any:
        await cancelled(memory._lock, lambda: memory.aput(("a",), "k", {"n": 1}))
        await memory.aput(("a",), "k", {"n": 2})
        return await memory.aget(("a",), "k")

    assert asyncio.run(work()).value == {"n": 2}
    assert [one.value for one in memory.history(("a",), "k")] == [{"n": 1}, {"n": 2}]


def test_a_cancelled_langgraph_checkpoint_and_its_writes_are_stored_once(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langgraph.checkpoint.base import empty_checkpoint

    from ortet.integrations.langgraph import OrtetSaver

    saver = OrtetSaver(hub)
    thread: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}

    async def work() -> Any:
        first = await saver.aput(thread, empty_checkpoint(), {}, {})
        lock, second = saver._threads.pool.hub(), {**empty_checkpoint(), "id": "second"}
        await cancelled(lock, lambda: saver.aput(first, second, {}, {}))  # type: ignore[arg-type]
        latest = await saver.aget_tuple(thread)
        assert latest is not None
        lock = saver._threads.pool.hub()
        monkeypatch.setattr(saver._threads.pending_writes, "await_until_added", withdrawn)
        await cancelled(lock, lambda: saver.aput_writes(latest.config, [("n", 1)], "task"))
        found = await saver.aget_tuple(thread)
        await saver.aput(latest.config, {**empty_checkpoint(), "id": "third"}, {}, {})
        return found

    async def withdrawn(*_: Any) -> bool:
        """Nobody came that takes the writes along."""
        return False

    found = asyncio.run(work())
    assert found.checkpoint["id"] == "second"
    assert found.pending_writes == [("task", "n", 1)]

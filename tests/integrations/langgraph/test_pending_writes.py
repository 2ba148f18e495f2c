"""What tasks write goes into the journal with the checkpoint that follows it, in one write."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from tests.fixtures.waiting import WAIT, aeventually, eventually, loop_turns

import ortet
from ortet.backends.base import EventRow
from ortet.backends.sqlite.catalog import SqliteCatalog
from ortet.errors import Conflict, Invalid
from ortet.hub.hub import Hub
from ortet.integrations.langgraph import OrtetSaver, pending_writes

OF: RunnableConfig = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the host is, the checkpoint comes before the wait for it is over."""
    monkeypatch.setattr(pending_writes, "BATCH_WINDOW_SECONDS", WAIT)
    monkeypatch.setattr(pending_writes, "CHECKPOINT_WAIT_SECONDS", WAIT)


@pytest.fixture
def appends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many events each write had."""
    found, real = list[int](), SqliteCatalog.append

    def append(self: SqliteCatalog, line: str, events: Sequence[EventRow], **more: Any) -> None:
        real(self, line, events, **more)
        found.append(len(events))

    monkeypatch.setattr(SqliteCatalog, "append", append)
    return found


def put(saver: OrtetSaver, config: RunnableConfig, n: int) -> Any:
    made: Any = {**empty_checkpoint(), "id": str(uuid6()), "channel_values": {"n": n}}
    made["channel_versions"] = {"n": n + 1}
    meta: Any = {"source": "loop", "step": n, "parents": {}}
    return saver.put(config, made, meta, made["channel_versions"])


def offered(saver: OrtetSaver, count: int) -> None:
    eventually(lambda: len(saver._threads.pending_writes._queued.get("t", ())) == count)


def writes(saver: OrtetSaver, config: RunnableConfig) -> list[Any]:
    found = saver.get_tuple(config)
    assert found is not None
    return list(found.pending_writes or ())


@pytest.mark.usefixtures("patient")
def test_writes_and_the_checkpoint_behind_them_are_one_write(
    hub: Hub, tmp_path: Path, appends: list[int]
) -> None:
    saver = OrtetSaver(hub)
    first = put(saver, OF, 0)
    with ThreadPoolExecutor() as pool:
        waiting = [
            pool.submit(saver.put_writes, first, [("m", AIMessage(f"said {n}", id=f"{n}"))], f"{n}")
            for n in range(2)
        ]
        offered(saver, 2)
        appends.clear()
        put(saver, first, 1)
        for one in waiting:
            one.result(WAIT)
    assert len(appends) == 1
    with ortet.open(tmp_path / "store") as again:
        found = writes(OrtetSaver(again), first)
    assert sorted((task, value.content) for task, _, value in found) == [
        ("0", "said 0"),
        ("1", "said 1"),
    ]


def test_a_write_that_stops_waiting_stores_the_other_offered_writes(
    hub: Hub, tmp_path: Path, appends: list[int]
) -> None:
    saver = OrtetSaver(hub)
    first = put(saver, OF, 0)
    tid, other = saver._make_pending_write(first, [("n", 1)], "other", "")
    saver._threads.pending_writes._add(tid, other)
    appends.clear()
    saver.put_writes(first, [("n", 2)], "task")
    assert other.is_stored
    assert len(appends) == 1
    with ortet.open(tmp_path / "store") as again:
        found = writes(OrtetSaver(again), first)
    assert sorted(found) == [("other", "n", 1), ("task", "n", 2)]


@pytest.mark.usefixtures("patient")
def test_async_writes_wait_without_a_thread(hub: Hub, appends: list[int]) -> None:
    saver = OrtetSaver(hub)
    first = put(saver, OF, 0)

    async def run() -> None:
        waiting = asyncio.create_task(saver.aput_writes(first, [("n", 7)], "task"))
        await aeventually(lambda: "t" in saver._threads.pending_writes._queued)
        appends.clear()
        await asyncio.to_thread(put, saver, first, 1)
        await waiting

    asyncio.run(run())
    assert len(appends) == 1
    assert writes(saver, first) == [("task", "n", 7)]


def test_async_writes_to_a_new_thread_leave_the_pool_to_its_first_checkpoint(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_writes, "CHECKPOINT_WAIT_SECONDS", WAIT)
    saver = OrtetSaver(hub)
    made: Any = {**empty_checkpoint(), "id": str(uuid6())}
    meta: Any = {"source": "loop", "step": 0, "parents": {}}
    of_it: RunnableConfig = {"configurable": {**OF["configurable"], "checkpoint_id": made["id"]}}

    async def write_first() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        tasks = [saver.aput_writes(of_it, [("n", i)], f"task-{i}") for i in range(5)]
        waiting = asyncio.gather(*tasks)
        await aeventually(lambda: len(saver._threads.pending_writes._queued.get("t", ())) == 5)
        await saver.aput(OF, made, meta, {})  # in the pool's one thread: no write waits in it
        await waiting

    asyncio.run(write_first())
    assert len(writes(saver, of_it)) == 5


def test_a_cancelled_write_is_not_stored_later(hub: Hub) -> None:
    saver = OrtetSaver(hub)
    first = put(saver, OF, 0)

    async def run() -> None:
        waiting = asyncio.create_task(saver.aput_writes(first, [("n", 7)], "task"))
        await loop_turns()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(run())
    put(saver, first, 1)
    assert not saver._threads.pending_writes._queued
    assert writes(saver, first) == []


def test_a_write_whose_caller_was_interrupted_is_not_stored_later(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_writes, "CHECKPOINT_WAIT_SECONDS", WAIT)
    saver = OrtetSaver(hub)
    first = put(saver, OF, 0)
    later: RunnableConfig = {"configurable": {**first["configurable"], "checkpoint_id": "later"}}
    ended = list[BaseException]()

    def work() -> None:
        try:
            saver.put_writes(later, [("n", 7)], "task")
        except KeyboardInterrupt as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    offered(saver, 1)
    stop = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(*stop) == 1
    thread.join(WAIT)
    assert len(ended) == 1
    assert not saver._threads.pending_writes._queued


@pytest.mark.usefixtures("patient")
def test_a_write_that_cannot_be_stored_fails_only_for_its_caller(hub: Hub) -> None:
    saver = OrtetSaver(hub)
    first = put(saver, OF, 0)
    with ThreadPoolExecutor() as pool:
        bad: Future[None] = pool.submit(
            saver.put_writes, first, [("lock", threading.Lock())], "task"
        )
        offered(saver, 1)
        put(saver, first, 1)
        with pytest.raises(Invalid, match="channel 'lock'"):
            bad.result(WAIT)
    latest = saver.get_tuple(OF)
    assert latest is not None
    assert latest.checkpoint["channel_values"] == {"n": 1}


@pytest.mark.usefixtures("patient")
def test_writes_are_stored_though_their_checkpoint_is_refused(hub: Hub) -> None:
    saver = OrtetSaver(hub)
    first = put(saver, OF, 0)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(saver.put_writes, first, [("n", 7)], "task")
        offered(saver, 1)
        made: Any = {**empty_checkpoint(), "channel_values": {"lock": threading.Lock()}}
        made["channel_versions"] = {"lock": 1}
        with pytest.raises(Invalid, match="channel 'lock'"):
            saver.put(first, made, {}, {"lock": 1})
        waiting.result(WAIT)
    assert writes(OrtetSaver(hub), OF) == [("task", "n", 7)]


def test_a_refused_checkpoint_takes_no_writes(hub: Hub) -> None:
    saver = OrtetSaver(hub)
    first = put(saver, OF, 0)
    put(saver, first, 1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(saver.put_writes, first, [("n", 7)], "task")
        with pytest.raises(Conflict):
            put(saver, first, 2)
        waiting.result(WAIT)
    assert writes(saver, first) == [("task", "n", 7)]

"""Calls that an event loop has a thread do."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from threading import Event, Thread, current_thread

import pytest
from tests.fixtures.waiting import WAIT, loop_turns

from ortet.integrations.openai_agents.conversation import SerialWorker


def test_one_thread_executes_calls_in_the_order_they_were_made() -> None:
    order, done = SerialWorker(), list[int]()

    async def main() -> list[str]:
        def add(number: int) -> str:
            done.append(number)
            return current_thread().name

        return await asyncio.gather(*(order.do(lambda n=n: add(n)) for n in range(50)))  # type: ignore[misc]

    assert set(asyncio.run(main())) == {"ortet-openai"}
    assert done == list(range(50))
    order.close()


def test_an_exception_reaches_its_caller_and_the_next_call_runs() -> None:
    order = SerialWorker()

    def fail() -> None:
        raise LookupError("gone")

    async def main() -> int:
        with pytest.raises(LookupError, match="gone"):
            await order.do(fail)
        return await order.do(lambda: 2)

    assert asyncio.run(main()) == 2
    order.close()
    assert asyncio.run(order.do(lambda: 3)) == 3  # it begins again, in another loop
    order.close()


def test_a_cancelled_caller_waits_until_its_call_has_ended() -> None:
    order, begun, go, ended = SerialWorker(), Event(), Event(), Event()

    def work() -> None:
        begun.set()
        assert go.wait(WAIT)
        ended.set()

    async def main() -> None:
        task = asyncio.ensure_future(order.do(work))
        assert await asyncio.to_thread(begun.wait, WAIT)
        for _ in range(3):
            task.cancel()
            await loop_turns(10)
            assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())
    order.close()


def test_the_thread_ends_when_its_order_is_collected() -> None:
    order = SerialWorker()
    thread = asyncio.run(order.do(current_thread))
    assert thread.is_alive()
    del order
    gc.collect()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_a_child_has_a_thread_of_its_own() -> None:
    order = SerialWorker()
    assert asyncio.run(order.do(os.getpid)) == os.getpid()
    child = os.fork()
    if not child:
        ended = 1
        try:
            ended = int(asyncio.run(order.do(os.getpid)) != os.getpid())
        finally:
            os._exit(ended)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    order.close()


def test_idle_threads_end_and_are_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortet.integrations.openai_agents.conversation._IDLE_TIMEOUT_SECONDS", 0.01)
    order = SerialWorker()
    for number in range(3):
        thread = asyncio.run(order.do(current_thread))
        thread.join(WAIT)
        assert not thread.is_alive(), number
    monkeypatch.setattr("ortet.integrations.openai_agents.conversation._IDLE_TIMEOUT_SECONDS", 0.0)
    for number in range(500):  # some meet a thread that is about to end
        assert asyncio.run(order.do(lambda n=number: n)) == number  # type: ignore[misc]
    order.close()


def test_a_call_after_a_failed_thread_start_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = SerialWorker()

    def refuse(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def ask() -> int:
        return await asyncio.wait_for(order.do(lambda: 1), WAIT)

    with monkeypatch.context() as full:
        full.setattr(Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            asyncio.run(ask())
    assert asyncio.run(ask()) == 1
    order.close()


def test_closing_after_each_call_leaves_no_finalizers() -> None:
    order = SerialWorker()
    before = len(weakref.finalize._registry)  # type: ignore[attr-defined]
    for _ in range(10):
        asyncio.run(order.do(os.getpid))
        order.close()
    assert len(weakref.finalize._registry) <= before  # type: ignore[attr-defined]

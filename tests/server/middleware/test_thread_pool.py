"""The thread pool of a server: order, slots of long calls, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from threading import Event
from typing import Any

import pytest
from tests.fixtures.waiting import WAIT, aeventually, loop_turns

from ortet.server.middleware.thread_pool import RequestThreadPool


def ran(main: Callable[[RequestThreadPool], Any], count: int = 2) -> Any:
    """In a loop of its own."""

    async def body() -> Any:
        threads = RequestThreadPool(count)
        try:
            return await asyncio.wait_for(main(threads), WAIT)
        finally:
            threads.close()

    return asyncio.run(body())


def test_results_and_errors_are_returned_to_the_caller() -> None:
    async def main(threads: RequestThreadPool) -> None:
        assert await asyncio.gather(*(threads.run(partial(pow, n, 2)) for n in range(50))) == [
            n * n for n in range(50)
        ]
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.run(partial(next, iter(())))
        assert (threads.working, threads.waiting) == (0, 0)

    ran(main)


def test_calls_beyond_the_thread_limit_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ortet.server.middleware.thread_pool._LONG_CALL_SECONDS", WAIT
    )  # nobody is long at it here

    async def main(threads: RequestThreadPool) -> None:
        go, begun = Event(), list[int]()

        def work(number: int) -> int:
            begun.append(number)
            go.wait(WAIT)
            return number

        tasks = [asyncio.create_task(threads.run(partial(work, n))) for n in range(5)]
        await aeventually(lambda: threads.waiting >= 3 and len(begun) >= 2)
        assert sorted(begun) == [0, 1]
        go.set()
        assert await asyncio.gather(*tasks) == [0, 1, 2, 3, 4]

    ran(main)


def test_long_call_gives_its_thread_slot_to_others() -> None:
    async def main(threads: RequestThreadPool) -> None:
        go = Event()
        long = [asyncio.create_task(threads.run(lambda: go.wait(WAIT))) for _ in range(2)]
        await loop_turns()
        assert await threads.run(lambda: "quick") == "quick"
        assert threads.working == 2
        go.set()
        assert await asyncio.gather(*long) == [True, True]
        # their places were given back once
        assert await asyncio.gather(*(threads.run(lambda: 1) for _ in range(10))) == [1] * 10
        assert threads.working == 0

    ran(main)


def test_cancelled_caller_does_not_stop_its_call() -> None:
    async def main(threads: RequestThreadPool) -> None:
        go, done = Event(), Event()

        def work() -> None:
            go.wait(WAIT)
            done.set()

        task = asyncio.create_task(threads.run(work))
        waiting = asyncio.create_task(threads.run(work))
        await aeventually(lambda: threads.working >= 1)
        task.cancel()
        waiting.cancel()
        assert await asyncio.gather(task, waiting, return_exceptions=True)
        go.set()
        assert await asyncio.to_thread(done.wait, WAIT)
        assert await threads.run(lambda: 3) == 3

    ran(main, count=1)


def test_a_call_runs_with_the_context_variables_of_its_caller() -> None:
    name = ContextVar("name", default="nobody")

    async def main(threads: RequestThreadPool) -> None:
        name.set("somebody")
        assert await threads.run(name.get) == "somebody"

    ran(main)


def test_call_after_close_is_refused() -> None:
    async def main(threads: RequestThreadPool) -> None:
        threads.close()
        with pytest.raises(RuntimeError):
            await threads.run(lambda: 1)

    ran(main)

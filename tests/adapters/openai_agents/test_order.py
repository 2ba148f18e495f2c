"""Calls that an event loop has a thread do."""

from __future__ import annotations

import asyncio
import gc
import os
from threading import Event, current_thread

import pytest

from ortet.surface.openai_agents.order import Order

_LONG = 60.0


def test_calls_are_done_in_the_order_they_are_made_by_one_thread() -> None:
    order, done = Order(), list[int]()

    async def main() -> list[str]:
        def add(number: int) -> str:
            done.append(number)
            return current_thread().name

        return await asyncio.gather(*(order.do(lambda n=n: add(n)) for n in range(50)))  # type: ignore[misc]

    assert set(asyncio.run(main())) == {"ortet-openai"}
    assert done == list(range(50))
    order.close()


def test_what_a_call_raises_is_told_and_the_next_is_done() -> None:
    order = Order()

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


def test_who_is_cancelled_goes_on_when_it_is_done() -> None:
    order, begun, go, ended = Order(), Event(), Event(), Event()

    def work() -> None:
        begun.set()
        assert go.wait(_LONG)
        ended.set()

    async def main() -> None:
        task = asyncio.ensure_future(order.do(work))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.001)
            assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())
    order.close()


def test_its_thread_ends_when_nobody_has_it() -> None:
    order = Order()
    thread = asyncio.run(order.do(current_thread))
    assert thread.is_alive()
    del order
    gc.collect()
    thread.join(_LONG)
    assert not thread.is_alive()


def test_a_child_has_a_thread_of_its_own() -> None:
    order = Order()
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

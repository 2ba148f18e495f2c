"""Threads in which the core works: a few at once, and more where some are long at it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any

_LONG_CALL_SECONDS = 1.0
"""Seconds after which a call is long: it counts no more, so that the quick ones are not kept."""
_LONG_CALL_CHECK_SECONDS = 0.25
"""Seconds from one look for long ones to the next."""
_MAX_LONG_CALLS = 480


class RequestThreadPool:
    """Used from one event loop. Those who wait are served in order.

    Leaner than asyncio's own: a call costs one future, and those that end together wake the loop
    once. At some thousand calls a second that is felt.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._long = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._queue: SimpleQueue[_ThreadCall | None] = SimpleQueue()
        self._finished: deque[_ThreadCall] = deque()
        self._is_delivery_scheduled = False  # the loop, that some have ended
        self._running: set[_ThreadCall] = set()
        self._check_timer: asyncio.TimerHandle | None = None
        self._threads = 0
        self._closed = False
        self.working = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def run(self, function: Callable[[], Any]) -> Any:
        """What it returns. A caller that is cancelled does not stop it."""
        loop = asyncio.get_running_loop()
        if self._free > 0:
            self._free -= 1
        else:
            await self._wait_for_slot(loop)
        if self._closed:
            self.release()
            raise RuntimeError("the threads were closed")
        work = _ThreadCall(loop, function)
        self._start(work)
        try:
            return await work.future
        finally:
            self._release_slot(work)

    def _start(self, work: _ThreadCall) -> None:
        self.working += 1
        self._running.add(work)
        if self._check_timer is None:
            self._check_timer = work.loop.call_later(
                _LONG_CALL_CHECK_SECONDS, self._check_long_calls, work.loop
            )
        self._queue.put(work)
        if self.working > self._threads:
            self._threads += 1
            name = f"ortet-http_{self._threads}"
            Thread(target=self._serve, name=name, daemon=True).start()

    async def _wait_for_slot(self, loop: asyncio.AbstractEventLoop) -> None:
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def close(self) -> None:
        """Nothing new; what works goes on."""
        self._closed = True
        for _ in range(self._threads):
            self._queue.put(None)

    def _release_slot(self, work: _ThreadCall) -> None:
        if work.held:
            work.held = False
            self.release()

    def _check_long_calls(self, loop: asyncio.AbstractEventLoop) -> None:
        """What is long at it gives its place to another."""
        now = loop.time()
        for work in self._running:
            if (
                work.held
                and now - work.begun >= _LONG_CALL_SECONDS
                and self._long < _MAX_LONG_CALLS
            ):
                self._long += 1
                work.lent = True
                self._release_slot(work)
        self._check_timer = (
            loop.call_later(_LONG_CALL_CHECK_SECONDS, self._check_long_calls, loop)
            if self._running
            else None
        )

    # in a thread

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            work.run()
            self._finished.append(work)
            if not self._is_delivery_scheduled:
                self._is_delivery_scheduled = True
                with suppress(RuntimeError):  # the loop is gone
                    work.loop.call_soon_threadsafe(self._deliver_results)
            del work  # what it holds is not kept until the next comes

    # in the loop again

    def _deliver_results(self) -> None:
        self._is_delivery_scheduled = False  # before it looks: who ends from now on tells it again
        while self._finished:
            work = self._finished.popleft()
            self.working -= 1
            self._running.discard(work)
            if work.lent:
                self._long -= 1
            work.deliver()


class _ThreadCall:
    """One call, and its place among those that work."""

    __slots__ = (
        "_context",
        "_error",
        "_function",
        "_result",
        "begun",
        "future",
        "held",
        "lent",
        "loop",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> None:
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.begun = loop.time()
        self.held = True
        self.lent = False
        self._context: Context = copy_context()
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._context.run(self._function)
        except StopIteration as error:  # which no future takes
            self._error = RuntimeError(f"a call ended with {error!r}")
        except BaseException as error:
            self._error = error

    def deliver(self) -> None:
        if self.future.cancelled():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
            self._error = None  # it refers back to us
        else:
            self.future.set_result(self._result)

"""A thread pool for blocking calls. Long calls free their slot, so that quick ones do not wait."""

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
"""Duration after which a call is long and no longer occupies a slot."""
_LONG_CALL_CHECK_SECONDS = 0.25
"""Interval between checks for long calls."""
_MAX_LONG_CALLS = 480


class RequestThreadPool:
    """Runs blocking calls for one event loop. Waiting calls start in order.

    Faster than the executor of asyncio: a call costs one future, and calls that end together wake
    the loop once. The difference matters at some thousand calls a second.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._long = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._queue: SimpleQueue[_ThreadCall | None] = SimpleQueue()
        self._finished: deque[_ThreadCall] = deque()
        self._is_delivery_scheduled = False  # `_deliver_results` is scheduled in the loop
        self._running: set[_ThreadCall] = set()
        self._check_timer: asyncio.TimerHandle | None = None
        self._threads = 0
        self._closed = False
        self.working = 0

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a slot."""
        return len(self._waiting)

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run `function` in a thread and return its result.

        Cancelling the caller does not stop it.
        """
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
        """Give a slot to the next waiting call, or make it free."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def close(self) -> None:
        """Accept no new calls. Running calls continue."""
        self._closed = True
        for _ in range(self._threads):
            self._queue.put(None)

    def _release_slot(self, work: _ThreadCall) -> None:
        if work.held:
            work.held = False
            self.release()

    def _check_long_calls(self, loop: asyncio.AbstractEventLoop) -> None:
        """Release the slots of long calls, up to `_MAX_LONG_CALLS`."""
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

    # Runs in a pool thread.

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            work.run()
            self._finished.append(work)
            if not self._is_delivery_scheduled:
                self._is_delivery_scheduled = True
                with suppress(RuntimeError):  # the loop is closed
                    work.loop.call_soon_threadsafe(self._deliver_results)
            del work  # do not keep the call alive until the next one arrives

    # Runs in the event loop.

    def _deliver_results(self) -> None:
        self._is_delivery_scheduled = False  # before reading: later calls schedule again
        while self._finished:
            work = self._finished.popleft()
            self.working -= 1
            self._running.discard(work)
            if work.lent:
                self._long -= 1
            work.deliver()


class _ThreadCall:
    """One call and the slot that it holds."""

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
        except StopIteration as error:  # a future does not accept StopIteration
            self._error = RuntimeError(f"a call ended with {error!r}")
        except BaseException as error:
            self._error = error

    def deliver(self) -> None:
        if self.future.cancelled():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
            self._error = None  # break the reference cycle
        else:
            self.future.set_result(self._result)

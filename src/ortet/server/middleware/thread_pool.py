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

_LONG = 1.0
"""Seconds after which a call is long: it counts no more, so that the quick ones are not kept."""
_LOOK = 0.25
"""Seconds from one look for long ones to the next."""
_MOST_LONG = 480


class Threads:
    """Used from one event loop. Those who wait are served in order.

    Leaner than asyncio's own: a call costs one future, and those that end together wake the loop
    once. At some thousand calls a second that is felt.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._long = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._given: SimpleQueue[_Work | None] = SimpleQueue()
        self._ended: deque[_Work] = deque()
        self._told = False  # the loop, that some have ended
        self._running: set[_Work] = set()
        self._looking: asyncio.TimerHandle | None = None
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
            await self._turn(loop)
        if self._closed:
            self.release()
            raise RuntimeError("the threads were closed")
        work = _Work(loop, function)
        self._begin(work)
        try:
            return await work.future
        finally:
            self._give_back(work)

    def _begin(self, work: _Work) -> None:
        self.working += 1
        self._running.add(work)
        if self._looking is None:
            self._looking = work.loop.call_later(_LOOK, self._look, work.loop)
        self._given.put(work)
        if self.working > self._threads:
            self._threads += 1
            name = f"ortet-http_{self._threads}"
            Thread(target=self._serve, name=name, daemon=True).start()

    async def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
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
            self._given.put(None)

    def _give_back(self, work: _Work) -> None:
        if work.held:
            work.held = False
            self.release()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """What is long at it gives its place to another."""
        now = loop.time()
        for work in self._running:
            if work.held and now - work.begun >= _LONG and self._long < _MOST_LONG:
                self._long += 1
                work.lent = True
                self._give_back(work)
        self._looking = loop.call_later(_LOOK, self._look, loop) if self._running else None

    # in a thread

    def _serve(self) -> None:
        while (work := self._given.get()) is not None:
            work.do()
            self._ended.append(work)
            if not self._told:
                self._told = True
                with suppress(RuntimeError):  # the loop is gone
                    work.loop.call_soon_threadsafe(self._tell)
            del work  # what it holds is not kept until the next comes

    # in the loop again

    def _tell(self) -> None:
        self._told = False  # before it looks: who ends from now on tells it again
        while self._ended:
            work = self._ended.popleft()
            self.working -= 1
            self._running.discard(work)
            if work.lent:
                self._long -= 1
            work.tell()


class _Work:
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

    def do(self) -> None:
        try:
            self._result = self._context.run(self._function)
        except StopIteration as error:  # which no future takes
            self._error = RuntimeError(f"a call ended with {error!r}")
        except BaseException as error:
            self._error = error

    def tell(self) -> None:
        if self.future.cancelled():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
            self._error = None  # it refers back to us
        else:
            self.future.set_result(self._result)

"""Threads in which the core works: a few at once, and more where some are long at it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

_LONG = 1.0
"""Seconds after which a call is long: it counts no more, so that the quick ones are not kept."""
_MOST_LONG = 480


class Threads:
    """Used from one event loop. Those who wait are served in order."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._long = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._pool = ThreadPoolExecutor(count + _MOST_LONG, thread_name_prefix="ortet-http")
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
        slot = _Slot(self)
        timer = loop.call_later(_LONG, slot.lend)
        self.working += 1
        try:
            work = loop.run_in_executor(self._pool, copy_context().run, function)
            work.add_done_callback(slot.ended)
            return await work
        finally:
            timer.cancel()
            slot.give_back()

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
        self._pool.shutdown(wait=False, cancel_futures=True)

    def take_long(self) -> bool:
        if self._long >= _MOST_LONG:
            return False
        self._long += 1
        return True

    def end_long(self) -> None:
        self._long -= 1


class _Slot:
    """The right of one call to a thread."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._held = True
        self._lent = False

    def lend(self) -> None:
        if self._held and self._threads.take_long():
            self._lent = True
            self.give_back()

    def give_back(self) -> None:
        if self._held:
            self._held = False
            self._threads.release()

    def ended(self, work: asyncio.Future[Any]) -> None:
        self._threads.working -= 1
        if self._lent:
            self._threads.end_long()
        if not work.cancelled():
            work.exception()  # which is looked at, also when nobody waits for it any more

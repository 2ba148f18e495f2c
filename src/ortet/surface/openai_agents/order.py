"""Calls that an event loop has a thread do: one after another, each to its end."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Order:
    """In a thread of its own, begun with the first of them; it ends with `close`, or when nobody
    has this any more. There and back takes half of the time that an executor needs, which was a
    fifth of all that it takes to store something."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._process = os.getpid()

    async def do(self, call: Callable[[], T]) -> T:
        """What `call` returns, behind whatever was asked for before. Who is cancelled meanwhile,
        which no thread can be, goes on only when it is done."""
        if self._thread is None or self._process != os.getpid():  # a forked child has no threads
            self._begin()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._jobs.put((call, loop, done))
        try:
            return await done
        except asyncio.CancelledError:
            behind = asyncio.ensure_future(self.do(_nothing))
            while not behind.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({behind})
            raise

    def close(self) -> None:
        """When all that was asked for is done. It can be used again."""
        thread, self._thread = self._thread, None
        if thread is not None and self._process == os.getpid():
            self._jobs.put(None)
            thread.join()

    def _begin(self) -> None:
        self._jobs, self._process = SimpleQueue(), os.getpid()
        # Not one that the end of the process waits for: who is at work then has a session of a
        # Lent, whose own end waits for that.
        self._thread = Thread(target=_work, args=(self._jobs,), name="ortet-openai", daemon=True)
        weakref.finalize(self, self._jobs.put, None).atexit = False
        self._thread.start()


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        call, loop, done = job
        given, failed = None, None
        try:
            given = call()
        except BaseException as error:
            failed = error
        with suppress(RuntimeError):  # a loop that was closed meanwhile: nobody waits there
            loop.call_soon_threadsafe(_tell, done, given, failed)
        # Nothing is kept until the next one comes: neither what was given nor, by its call, whose
        # thread this is.
        del job, call, loop, done, given, failed


def _tell(done: asyncio.Future[Any], given: Any, failed: BaseException | None) -> None:
    if done.done():  # it was cancelled meanwhile
        return
    if failed is None:
        done.set_result(given)
    else:
        done.set_exception(failed)


def _nothing() -> None: ...

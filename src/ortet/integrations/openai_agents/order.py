"""Calls that an event loop has a thread do: one after another, each to its end."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]

_IDLE_TIMEOUT_SECONDS = 5.0
"""Seconds without a call after which a thread ends: a server may keep thousands of sessions."""


class SerialWorker:
    """In a thread of its own, begun with the first of them; it ends with `close`, when nothing was
    asked for a while, or when nobody has this any more. There and back takes half of the time that
    an executor needs, which was a fifth of all that it takes to store something."""

    def __init__(self) -> None:
        self._worker_threads: list[_WorkerThread] = []  # one, or none before it is begun
        self._pid = os.getpid()
        weakref.finalize(self, _end, self._worker_threads).atexit = False

    async def do(self, call: Callable[[], T]) -> T:
        """What `call` returns, behind whatever was asked for before. Who is cancelled meanwhile,
        which no thread can be, goes on only when it is done."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._put((call, loop, done))
        try:
            return await done
        except asyncio.CancelledError:
            behind = asyncio.ensure_future(self.do(_noop))
            while not behind.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({behind})
            raise

    def close(self) -> None:
        """When all that was asked for is done. It can be used again."""
        if self._worker_threads and self._pid == os.getpid():
            queue = self._worker_threads.pop()
            queue.close()
            queue.thread.join()

    def _put(self, job: _Job) -> None:
        here = self._pid == os.getpid()  # a forked child has no threads
        if not (here and self._worker_threads and self._worker_threads[0].try_put(job)):
            queue = _WorkerThread(job)
            queue.thread.start()
            self._worker_threads[:], self._pid = [queue], os.getpid()


class _WorkerThread:
    """What a thread has to do. It does not know whose it is, so that nobody needs to have that."""

    def __init__(self, first: _Job) -> None:
        # Not one that the end of the process waits for: who is at work then has a session of a
        # Lent, whose own end waits for that.
        self.thread = Thread(target=_work, args=(self,), name="ortet-openai", daemon=True)
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.jobs.put(first)
        self._lock = Lock()
        self._ended = False

    def try_put(self, job: _Job) -> bool:
        """False when the thread ends, or has ended, and would not do it."""
        with self._lock:
            if not self._ended:
                self.jobs.put(job)
            return not self._ended

    def next(self) -> _Job | None:
        with suppress(Empty):
            return self.jobs.get(timeout=_IDLE_TIMEOUT_SECONDS)
        with self._lock:
            self._ended = self._ended or self.jobs.empty()
            return None if self.jobs.empty() else self.jobs.get()

    def close(self) -> None:
        with self._lock:
            self._ended = True
        self.jobs.put(None)


def _end(threads: list[_WorkerThread]) -> None:
    """Its owner is gone, perhaps in the midst of anything that this thread does: no lock."""
    for one in threads:
        one.jobs.put(None)


def _work(worker: _WorkerThread) -> None:
    while (job := worker.next()) is not None:
        call, loop, done = job
        given, failed = None, None
        try:
            given = call()
        except BaseException as error:
            failed = error
        with suppress(RuntimeError):  # a loop that was closed meanwhile: nobody waits there
            loop.call_soon_threadsafe(_set_outcome, done, given, failed)
        # Nothing is kept until the next one comes: neither what was given nor, by its call, whose
        # thread this is.
        del job, call, loop, done, given, failed


def _set_outcome(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():  # it was cancelled meanwhile
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


def _noop() -> None: ...

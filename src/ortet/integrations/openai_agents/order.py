"""Runs calls of an event loop in one thread, in order and each to its end."""

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
"""Seconds without a call after which the thread ends; a server may have thousands of sessions."""


class SerialWorker:
    """Runs calls one after another in a thread of its own.

    The thread starts with the first call. It ends with `close`, after some idle time, or when this
    object is collected. A round trip takes half as long as with an executor, whose overhead was a
    fifth of the time to store something.
    """

    def __init__(self) -> None:
        # empty before the first call, else one thread
        self._worker_threads: list[_WorkerThread] = []
        self._pid = os.getpid()
        weakref.finalize(self, _end, self._worker_threads).atexit = False

    async def do(self, call: Callable[[], T]) -> T:
        """Run `call` after all earlier calls and return its result.

        A thread cannot be cancelled. If the caller is cancelled, this waits until the call is done.
        """
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
        """Finish all calls and end the thread. The worker can be used again."""
        if self._worker_threads and self._pid == os.getpid():
            queue = self._worker_threads.pop()
            queue.close()
            queue.thread.join()

    def _put(self, job: _Job) -> None:
        here = self._pid == os.getpid()  # A forked child has no threads.
        if not (here and self._worker_threads and self._worker_threads[0].try_put(job)):
            queue = _WorkerThread(job)
            queue.thread.start()
            self._worker_threads[:], self._pid = [queue], os.getpid()


class _WorkerThread:
    """The thread and its job queue.

    It has no reference to its owner, so the owner can be collected.
    """

    def __init__(self, first: _Job) -> None:
        # A daemon thread: process exit must not wait for it. A running call may use a session of
        # the pool, and closing the pool at exit already waits for that call.
        self.thread = Thread(target=_work, args=(self,), name="ortet-openai", daemon=True)
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.jobs.put(first)
        self._lock = Lock()
        self._ended = False

    def try_put(self, job: _Job) -> bool:
        """Queue a job; False if the thread ends or has ended."""
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
    """End the threads after their owner was collected.

    This takes no lock, because garbage collection may interrupt this thread anywhere.
    """
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
        with suppress(RuntimeError):  # The loop was closed: nobody waits.
            loop.call_soon_threadsafe(_set_outcome, done, given, failed)
        # Keep no references while waiting for the next job: the call would keep its owner alive.
        del job, call, loop, done, given, failed


def _set_outcome(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():  # It was cancelled.
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


def _noop() -> None: ...

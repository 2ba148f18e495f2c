"""Queues task writes, so that the next checkpoint can store them in the same transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from ortet.integrations.langgraph.thread import CheckpointKey, GraphThread
from ortet.sessions.session import Session

EnsureStored = Callable[[], None]
"""Returns when the added writes are on disk."""
AddWrites = Callable[[Session, GraphThread], EnsureStored]

BATCH_WINDOW_SECONDS = 0.002
"""Seconds that task writes wait for the checkpoint that follows them."""
CHECKPOINT_WAIT_SECONDS = 0.5
"""Seconds that task writes wait for their own checkpoint; background threads may store it later."""


class PendingWrite:
    """Task writes to one checkpoint.

    The next writer of the thread adds them with `add_to`. `on_added` is called after that, also on
    failure.
    """

    __slots__ = ("_add_writes", "checkpoint_key", "ensure_stored", "is_stored", "on_added")

    def __init__(self, checkpoint_key: CheckpointKey, add_writes: AddWrites) -> None:
        self.checkpoint_key = checkpoint_key
        self.ensure_stored: EnsureStored = lambda: None
        self.is_stored = False
        self.on_added: Callable[[], None] = lambda: None
        self._add_writes = add_writes

    def add_to(self, session: Session, thread: GraphThread) -> bool:
        try:
            self.ensure_stored = self._add_writes(session, thread)
            return True
        except Exception as error:
            # The error is for the task that wrote, not for the writer that adds its writes.
            failure = error

            def fail() -> None:
                raise failure

            self.ensure_stored = fail
            return False


class PendingWriteQueue:
    """The pending writes of all threads.

    A write that was added only has to call `ensure_stored`.

    Args:
        is_known: returns True if this process has read a thread.
        is_stored: returns True if a checkpoint of such a thread is stored or was refused.
    """

    def __init__(
        self, is_known: Callable[[str], bool], is_stored: Callable[[str, CheckpointKey], bool]
    ) -> None:
        self._is_known = is_known
        self._is_stored = is_stored
        self._lock = Lock()
        self._queued: dict[str, list[PendingWrite]] = {}

    def add_all(self, tid: str, session: Session, thread: GraphThread) -> list[PendingWrite]:
        """Add all writes whose checkpoint is stored.

        The caller has to call `notify_added` with them when they are on disk.
        """
        if tid not in self._queued:
            return []
        with self._lock:
            waiting = self._queued.pop(tid, [])
            ready = [
                one for one in waiting if thread.get_checkpoint(*one.checkpoint_key) is not None
            ]
            if rest := [one for one in waiting if one not in ready]:
                self._queued[tid] = rest
        taken = []
        for one in ready:
            if one.add_to(session, thread):
                taken.append(one)
            else:
                one.on_added()
        return taken

    def wait_until_added(self, tid: str, pending: PendingWrite) -> bool:
        """Wait until a writer has added it; False if it was withdrawn because no writer came."""
        gate = Lock()
        gate.acquire()
        pending.on_added = gate.release
        try:
            self._add(tid, pending)
            last, until = (
                self._is_ready(tid, pending.checkpoint_key),
                time.monotonic() + CHECKPOINT_WAIT_SECONDS,
            )
            while not gate.acquire(timeout=BATCH_WINDOW_SECONDS):
                if (last or time.monotonic() > until) and self._withdraw(tid, pending):
                    return False
                last = last or self._is_ready(tid, pending.checkpoint_key)
            return True
        except BaseException:  # A signal interrupted the wait: nobody waits any more.
            self._withdraw(tid, pending)
            raise

    async def await_until_added(self, tid: str, pending: PendingWrite) -> bool:
        """Wait in the event loop until a writer has added it; see `wait_until_added`.

        No thread is blocked, because the thread pool is small and storing the checkpoint needs one.
        The caller has read the thread, so an unknown thread has no checkpoint yet.
        """
        loop = asyncio.get_running_loop()
        gate: asyncio.Future[None] = loop.create_future()

        def open_() -> None:
            if not gate.done():
                gate.set_result(None)

        def notify_stored() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(open_)

        pending.on_added = notify_stored
        self._add(tid, pending)
        try:
            last, until = (
                self._is_stored(tid, pending.checkpoint_key),
                loop.time() + CHECKPOINT_WAIT_SECONDS,
            )
            while not (await asyncio.wait({gate}, timeout=BATCH_WINDOW_SECONDS))[0]:
                if (last or loop.time() > until) and self._withdraw(tid, pending):
                    return False
                last = last or self._is_stored(tid, pending.checkpoint_key)
            return True
        except asyncio.CancelledError:
            self._withdraw(tid, pending)
            raise

    def _is_ready(self, tid: str, checkpoint_key: CheckpointKey) -> bool:
        return not self._is_known(tid) or self._is_stored(tid, checkpoint_key)

    def _add(self, tid: str, pending: PendingWrite) -> None:
        with self._lock:
            self._queued.setdefault(tid, []).append(pending)

    def _withdraw(self, tid: str, pending: PendingWrite) -> bool:
        """Remove it from the queue; False if it was already added."""
        with self._lock:
            waiting = self._queued.get(tid, [])
            if pending not in waiting:
                return False
            waiting.remove(pending)
            if not waiting:
                del self._queued[tid]
            return True


def notify_added(writes: list[PendingWrite], *, is_stored: bool) -> None:
    for one in writes:
        one.is_stored = is_stored
        one.on_added()

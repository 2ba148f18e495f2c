"""What tasks wrote, on its way into the journal: mostly with the checkpoint that follows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from ortet.integrations.langgraph.thread import CheckpointKey, GraphThread
from ortet.sessions.session import Session

EnsureStored = Callable[[], None]
"""What has been added is on the disk when it returns."""
AddWrites = Callable[[Session, GraphThread], EnsureStored]

BATCH_WINDOW_SECONDS = 0.002
"""Seconds that writes of a task wait for the checkpoint that follows them."""
CHECKPOINT_WAIT_SECONDS = 0.5
"""The same for the one they belong to: background threads may have it that they come first."""


class PendingWrite:
    """Writes to the checkpoint at `spot`. `take` adds them, by whoever writes next, and `told` is
    called when that was done, well or not."""

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
        except Exception as error:  # is told to who offers it, not to who takes it
            failure = error

            def fail() -> None:
                raise failure

            self.ensure_stored = fail
            return False


class PendingWriteQueue:
    """Those of all threads. Where one is `taken` all that is left is to `settle` it.

    Args:
        is_known: Whether this process has read a thread.
        is_stored: Whether a checkpoint of such a thread is there, or was refused.
    """

    def __init__(
        self, is_known: Callable[[str], bool], is_stored: Callable[[str, CheckpointKey], bool]
    ) -> None:
        self._is_known = is_known
        self._is_stored = is_stored
        self._lock = Lock()
        self._queued: dict[str, list[PendingWrite]] = {}

    def add_all(self, tid: str, session: Session, thread: GraphThread) -> list[PendingWrite]:
        """Add all whose checkpoint is there; `tell` them when that is on the disk."""
        if tid not in self._queued:
            return []
        with self._lock:
            waiting = self._queued.pop(tid, [])
            found = [
                one for one in waiting if thread.get_checkpoint(*one.checkpoint_key) is not None
            ]
            if rest := [one for one in waiting if one not in found]:
                self._queued[tid] = rest
        taken = []
        for one in found:
            if one.add_to(session, thread):
                taken.append(one)
            else:
                one.on_added()
        return taken

    def wait_until_added(self, tid: str, pending: PendingWrite) -> bool:
        """Wait until it is; False when it was withdrawn, since nobody came."""
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
        except BaseException:  # by a signal: nobody waits for it any more
            self._withdraw(tid, pending)
            raise

    async def await_until_added(self, tid: str, pending: PendingWrite) -> bool:
        """Wait as `taken` does, in the loop: its pool is small, and the checkpoint needs a thread.

        The caller has read the thread, so one that is not known has no checkpoint yet.
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
        """False: it was taken."""
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

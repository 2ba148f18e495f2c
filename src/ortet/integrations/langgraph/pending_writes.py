"""What tasks wrote, on its way into the journal: mostly with the checkpoint that follows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from ortet.integrations.langgraph.thread import Spot, Thread
from ortet.sessions.session import Session

Settle = Callable[[], None]
"""What has been added is on the disk when it returns."""
Take = Callable[[Session, Thread], Settle]

GATHER = 0.002
"""Seconds that writes of a task wait for the checkpoint that follows them."""
LATE = 0.5
"""The same for the one they belong to: background threads may have it that they come first."""


class Offer:
    """Writes to the checkpoint at `spot`. `take` adds them, by whoever writes next, and `told` is
    called when that was done, well or not."""

    __slots__ = ("_take", "is_stored", "settle", "spot", "told")

    def __init__(self, spot: Spot, take: Take) -> None:
        self.spot = spot
        self.settle: Settle = lambda: None
        self.is_stored = False
        self.told: Callable[[], None] = lambda: None
        self._take = take

    def take(self, session: Session, thread: Thread) -> bool:
        try:
            self.settle = self._take(session, thread)
            return True
        except Exception as error:  # is told to who offers it, not to who takes it
            failure = error

            def fail() -> None:
                raise failure

            self.settle = fail
            return False


class Offers:
    """Those of all threads. Where one is `taken` all that is left is to `settle` it.

    Args:
        is_known: Whether this process has read a thread.
        is_stored: Whether a checkpoint of such a thread is there, or was refused.
    """

    def __init__(
        self, is_known: Callable[[str], bool], is_stored: Callable[[str, Spot], bool]
    ) -> None:
        self._is_known = is_known
        self._is_stored = is_stored
        self._lock = Lock()
        self._waiting: dict[str, list[Offer]] = {}

    def take(self, tid: str, session: Session, thread: Thread) -> list[Offer]:
        """Add all whose checkpoint is there; `tell` them when that is on the disk."""
        if tid not in self._waiting:
            return []
        with self._lock:
            waiting = self._waiting.pop(tid, [])
            found = [one for one in waiting if thread.saved(*one.spot) is not None]
            if rest := [one for one in waiting if one not in found]:
                self._waiting[tid] = rest
        taken = []
        for one in found:
            if one.take(session, thread):
                taken.append(one)
            else:
                one.told()
        return taken

    def taken(self, tid: str, offer: Offer) -> bool:
        """Wait until it is; False when it was withdrawn, since nobody came."""
        gate = Lock()
        gate.acquire()
        offer.told = gate.release
        try:
            self._add(tid, offer)
            last, until = self._is_here(tid, offer.spot), time.monotonic() + LATE
            while not gate.acquire(timeout=GATHER):
                if (last or time.monotonic() > until) and self._withdraw(tid, offer):
                    return False
                last = last or self._is_here(tid, offer.spot)
            return True
        except BaseException:  # by a signal: nobody waits for it any more
            self._withdraw(tid, offer)
            raise

    async def ataken(self, tid: str, offer: Offer) -> bool:
        """Wait as `taken` does, in the loop: its pool is small, and the checkpoint needs a thread.

        The caller has read the thread, so one that is not known has no checkpoint yet.
        """
        loop = asyncio.get_running_loop()
        gate: asyncio.Future[None] = loop.create_future()

        def open_() -> None:
            if not gate.done():
                gate.set_result(None)

        def told() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(open_)

        offer.told = told
        self._add(tid, offer)
        try:
            last, until = self._is_stored(tid, offer.spot), loop.time() + LATE
            while not (await asyncio.wait({gate}, timeout=GATHER))[0]:
                if (last or loop.time() > until) and self._withdraw(tid, offer):
                    return False
                last = last or self._is_stored(tid, offer.spot)
            return True
        except asyncio.CancelledError:
            self._withdraw(tid, offer)
            raise

    def _is_here(self, tid: str, spot: Spot) -> bool:
        return not self._is_known(tid) or self._is_stored(tid, spot)

    def _add(self, tid: str, offer: Offer) -> None:
        with self._lock:
            self._waiting.setdefault(tid, []).append(offer)

    def _withdraw(self, tid: str, offer: Offer) -> bool:
        """False: it was taken."""
        with self._lock:
            waiting = self._waiting.get(tid, [])
            if offer not in waiting:
                return False
            waiting.remove(offer)
            if not waiting:
                del self._waiting[tid]
            return True


def tell(taken: list[Offer], *, is_stored: bool) -> None:
    for one in taken:
        one.is_stored = is_stored
        one.told()

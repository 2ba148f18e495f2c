"""News of a store for any number of streams: one thread listens, and wakes those whom it concerns.

A signal is only a hint, so everybody is woken once in a while in any case: all at the same moment,
so that what many of them look at is read once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread

from ortet.backends.base import Signal

ANY_TOPIC = "*"
"""The topic of those who want to hear of everything."""

WAKE_ALL_SECONDS = 5.0
"""Seconds after which everybody looks."""


class WakeupListener:
    """Rung for one stream; `heard` are the topics since it was last asked, None: any."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = frozenset(topics)
        self._pending_topics: set[str] | None = set()
        self._is_woken = asyncio.Event()

    def wake(self, topics: set[str] | None) -> None:
        if topics is None or self._pending_topics is None:
            self._pending_topics = None
        else:
            self._pending_topics |= topics
        self._is_woken.set()

    async def wait(self, timeout: float) -> bool:
        """Whether it was rung before the time was up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._is_woken.wait()
        return self._is_woken.is_set()

    def pop_topics(self) -> set[str] | None:
        """What it was rung for; then it is still."""
        found, self._pending_topics = self._pending_topics, set()
        self._is_woken.clear()
        return found


class StoreWakeups:
    """Of one store. All but the thread is done in the event loop."""

    def __init__(self, signal: Signal) -> None:
        self._signal = signal
        self._listeners: dict[str, set[WakeupListener]] = {}
        self._thread: Thread | None = None
        self._lock = Lock()
        self._closed = False

    @contextmanager
    def listen(self, *topics: str) -> Iterator[WakeupListener]:
        """A bell that is rung for these topics from now on."""
        bell = WakeupListener(topics)
        for topic in bell.topics:
            self._listeners.setdefault(topic, set()).add(bell)
        self._start()
        try:
            yield bell
        finally:
            for topic in bell.topics:
                self._listeners[topic].discard(bell)
                if not self._listeners[topic]:
                    del self._listeners[topic]

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            token, _ = self._signal.wait_any(None, 0.0)
            loop = asyncio.get_running_loop()
            self._thread = Thread(
                target=self._listen, args=(loop, token), name="ortet-feed", daemon=True
            )
            self._thread.start()

    def _listen(self, loop: asyncio.AbstractEventLoop, token: int) -> None:
        until = loop.time() + WAKE_ALL_SECONDS
        while not self._closed:
            token, topics = self._signal.wait_any(token, max(0.0, until - loop.time()))
            if loop.time() >= until:
                topics, until = None, loop.time() + WAKE_ALL_SECONDS
            if topics is None or topics:
                with self._lock:
                    if self._closed:
                        return
                    loop.call_soon_threadsafe(self.wake, topics)

    def wake(self, topics: set[str] | None) -> None:
        """Wake those who listen for one of these topics; None: all."""
        if topics is None:
            for bell in {bell for bells in self._listeners.values() for bell in bells}:
                bell.wake(None)
            return
        for topic in (ANY_TOPIC, *topics):
            for bell in self._listeners.get(topic, ()):
                bell.wake(topics)

    def close(self) -> None:
        """From any thread."""
        with self._lock:
            self._closed = True
        if self._thread is not None:
            self._signal.notify("feed")
            self._thread.join()

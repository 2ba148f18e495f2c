"""Wake-ups for streams: one thread per store waits for signals and wakes the streams they concern.

A signal is only a hint, so all streams are also woken periodically. They are woken together, so
that reads of the same data are shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread

from ortet.backends.base import Signal

ANY_TOPIC = "*"
"""Topic of listeners that want all signals."""

WAKE_ALL_SECONDS = 5.0
"""Interval after which all listeners are woken."""


class WakeupListener:
    """Wakes one stream."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = frozenset(topics)
        self._pending_topics: set[str] | None = set()
        self._is_woken = asyncio.Event()

    def wake(self, topics: set[str] | None) -> None:
        """Wake the stream for these topics; None means any."""
        if topics is None or self._pending_topics is None:
            self._pending_topics = None
        else:
            self._pending_topics |= topics
        self._is_woken.set()

    async def wait(self, timeout: float) -> bool:
        """Wait until the listener is woken. Return False after the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._is_woken.wait()
        return self._is_woken.is_set()

    def pop_topics(self) -> set[str] | None:
        """Return the topics since the last call, None for any, and reset the listener."""
        topics, self._pending_topics = self._pending_topics, set()
        self._is_woken.clear()
        return topics


class StoreWakeups:
    """The listeners of one store. Everything but the thread runs in the event loop."""

    def __init__(self, signal: Signal) -> None:
        self._signal = signal
        self._listeners: dict[str, set[WakeupListener]] = {}
        self._thread: Thread | None = None
        self._lock = Lock()
        self._closed = False

    @contextmanager
    def listen(self, *topics: str) -> Iterator[WakeupListener]:
        """Yield a listener that is woken for these topics from now on."""
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
        """Wake the listeners of these topics; None wakes all."""
        if topics is None:
            for bell in {bell for bells in self._listeners.values() for bell in bells}:
                bell.wake(None)
            return
        for topic in (ANY_TOPIC, *topics):
            for bell in self._listeners.get(topic, ()):
                bell.wake(topics)

    def close(self) -> None:
        """Stop the thread. May be called from any thread."""
        with self._lock:
            self._closed = True
        if self._thread is not None:
            self._signal.notify("feed")
            self._thread.join()

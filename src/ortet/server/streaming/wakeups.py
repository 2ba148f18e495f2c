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

ANY = "*"
"""The topic of those who want to hear of everything."""

PATIENCE = 5.0
"""Seconds after which everybody looks."""


class Bell:
    """Rung for one stream; `heard` are the topics since it was last asked, None: any."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = frozenset(topics)
        self._heard: set[str] | None = set()
        self._rung = asyncio.Event()

    def ring(self, topics: set[str] | None) -> None:
        if topics is None or self._heard is None:
            self._heard = None
        else:
            self._heard |= topics
        self._rung.set()

    async def wait(self, timeout: float) -> bool:
        """Whether it was rung before the time was up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._rung.wait()
        return self._rung.is_set()

    def heard(self) -> set[str] | None:
        """What it was rung for; then it is still."""
        found, self._heard = self._heard, set()
        self._rung.clear()
        return found


class Feed:
    """Of one store. All but the thread is done in the event loop."""

    def __init__(self, signal: Signal) -> None:
        self._signal = signal
        self._bells: dict[str, set[Bell]] = {}
        self._thread: Thread | None = None
        self._lock = Lock()
        self._closed = False

    @contextmanager
    def listen(self, *topics: str) -> Iterator[Bell]:
        """A bell that is rung for these topics from now on."""
        bell = Bell(topics)
        for topic in bell.topics:
            self._bells.setdefault(topic, set()).add(bell)
        self._start()
        try:
            yield bell
        finally:
            for topic in bell.topics:
                self._bells[topic].discard(bell)
                if not self._bells[topic]:
                    del self._bells[topic]

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            token, _ = self._signal.news(None, 0.0)
            loop = asyncio.get_running_loop()
            self._thread = Thread(
                target=self._listen, args=(loop, token), name="ortet-feed", daemon=True
            )
            self._thread.start()

    def _listen(self, loop: asyncio.AbstractEventLoop, token: int) -> None:
        until = loop.time() + PATIENCE
        while not self._closed:
            token, topics = self._signal.news(token, max(0.0, until - loop.time()))
            if loop.time() >= until:
                topics, until = None, loop.time() + PATIENCE
            if topics is None or topics:
                with self._lock:
                    if self._closed:
                        return
                    loop.call_soon_threadsafe(self.ring, topics)

    def ring(self, topics: set[str] | None) -> None:
        """Wake those who listen for one of these topics; None: all."""
        if topics is None:
            for bell in {bell for bells in self._bells.values() for bell in bells}:
                bell.ring(None)
            return
        for topic in (ANY, *topics):
            for bell in self._bells.get(topic, ()):
                bell.ring(topics)

    def close(self) -> None:
        """From any thread."""
        with self._lock:
            self._closed = True
        if self._thread is not None:
            self._signal.notify("feed")
            self._thread.join()

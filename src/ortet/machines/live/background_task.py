"""Runs one background task at a time in a daemon thread.

It is a module of its own because the dumper and the machine use it for unrelated tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread


class BackgroundTask:
    """Runs tasks one after the other, each in a thread; `start` waits for the task before it."""

    def __init__(self) -> None:
        self._thread: Thread | None = None

    def start(self, task: Callable[[], object]) -> None:
        """Wait for the task before it, then run this one in a thread."""
        self.wait()
        self._thread = Thread(target=task, name="ortet-errand", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the running task has ended."""
        running, self._thread = self._thread, None
        if running is not None:
            running.join()

"""What need not be waited for, done beside."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread


class BackgroundTask:
    """One after the other, each in a thread."""

    def __init__(self) -> None:
        self._thread: Thread | None = None

    def start(self, task: Callable[[], object]) -> None:
        self.wait()
        self._thread = Thread(target=task, name="ortet-errand", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it is done."""
        running, self._thread = self._thread, None
        if running is not None:
            running.join()

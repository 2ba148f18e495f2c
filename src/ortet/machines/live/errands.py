"""What need not be waited for, done beside."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread


class Errands:
    """One after the other, each in a thread."""

    def __init__(self) -> None:
        self._running: Thread | None = None

    def do(self, task: Callable[[], object]) -> None:
        self.wait()
        self._running = Thread(target=task, name="ortet-errand", daemon=True)
        self._running.start()

    def wait(self) -> None:
        """Until it is done."""
        running, self._running = self._running, None
        if running is not None:
            running.join()

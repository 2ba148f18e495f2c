"""A progress bar for work that takes longer than a second, on a terminal."""

from __future__ import annotations

import os
import threading
import time
from typing import IO

SHOW_AFTER_SECONDS = 1.0  # delay before the bar is shown
REDRAW_SECONDS = 0.1
BAR_WIDTH = 24


class Progress:
    """Called with (done, total). A thread draws the bar, so that a call costs almost nothing."""

    def __init__(self, label: str, stream: IO[str], *, shown: bool) -> None:
        self._label = label
        self._stream = stream
        self._state = (0, 0)
        self._started_at = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True) if shown else None

    def __call__(self, done: int, total: int) -> None:
        self._state = (done, total)

    def __enter__(self) -> Progress:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self) -> None:
        if self._done.wait(SHOW_AFTER_SECONDS):
            return
        while not self._done.is_set():
            self._write(self._line())
            self._done.wait(REDRAW_SECONDS)
        self._write("")

    def _line(self) -> str:
        elapsed = int(time.monotonic() - self._started_at)
        done, total = self._state
        if total <= 0:
            return f"{self._label} ... {elapsed} s"
        filled = min(BAR_WIDTH, BAR_WIDTH * done // total)
        bar = "#" * filled + "-" * (BAR_WIDTH - filled)
        return f"{self._label} [{bar}] {100 * done // total:3d} %  {done}/{total}  {elapsed} s"

    def _write(self, line: str) -> None:
        try:
            width = os.get_terminal_size(self._stream.fileno()).columns or 80
        except OSError:
            width = 80
        self._stream.write(f"\r{line[: width - 1]}\x1b[K")
        self._stream.flush()

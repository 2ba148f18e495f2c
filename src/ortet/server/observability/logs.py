"""The server log: one JSON object a line, written by a thread of its own.

If nobody reads standard error, lines are dropped instead of blocking the server.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Event, Thread
from typing import Any

from ortet.server.errors import redact_tokens
from ortet.server.wire import to_json

_MAX_QUEUED_LINES = 20_000
_BATCH_SECONDS = 0.02
"""Time for which lines are collected before they are written together."""


class ServerLog:
    """The log of a server. `write` takes bytes and may block. Debug lines need `debug`."""

    def __init__(self, write: Callable[[bytes], object], *, debug: bool = False) -> None:
        self._write = write
        self._debug = debug
        self._lines: deque[tuple[float, dict[str, Any]]] = deque(maxlen=_MAX_QUEUED_LINES)
        self._has_lines = Event()
        self._stop = False
        self._thread = Thread(target=self._run, name="ortet-log", daemon=True)
        self._thread.start()

    def say(self, level: str, what: str, **fields: Any) -> None:
        """Queue a line. If the queue is full, the oldest line is dropped."""
        if level == "debug" and not self._debug:
            return
        self._lines.append((time.time(), {"level": level, "message": what, **fields}))
        if not self._has_lines.is_set():
            self._has_lines.set()

    def log_exception(self, what: str, error: BaseException, **fields: Any) -> None:
        """Log an exception with the source lines of its traceback."""
        where = [
            f"{frame.filename}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(error.__traceback__)
        ]
        self.say("error", what, error=type(error).__name__, said=str(error), where=where, **fields)

    def close(self) -> None:
        """Write all queued lines; wait at most two seconds for the reader."""
        self._stop = True
        self._has_lines.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        while not self._stop:
            self._has_lines.wait()
            if not self._stop:
                time.sleep(_BATCH_SECONDS)
            self._has_lines.clear()
            self._drain()
        self._drain()

    def _drain(self) -> None:
        lines = []
        while self._lines:
            lines.append(_line(*self._lines.popleft()))
        if lines:
            try:
                self._write(redact_tokens(b"".join(lines)))
            except (OSError, ValueError):  # standard error is closed
                return


def to_stderr(data: bytes) -> None:
    """Write and flush, so that no line is lost if the server is killed."""
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()


def _line(when: float, fields: dict[str, Any]) -> bytes:
    now = datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds")
    return to_json({"time": now.replace("+00:00", "Z"), **fields}) + b"\n"


class ServerLogHandler(logging.Handler):
    """Writes warnings and errors of libraries to the server log."""

    def __init__(self, log: ServerLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        what = record.getMessage().strip()
        if error is not None:
            self._log.log_exception(what, error)
        else:
            self._log.say(record.levelname.lower(), what)

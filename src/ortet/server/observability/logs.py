"""The server log: one JSON object a line, for every record of `logging` that concerns the server.

Modules log through `logging.getLogger(__name__)`. `log_to_stderr` connects the loggers with
standard error. A thread writes the lines, because a request must not wait for the reader of
standard error: if nobody reads, the oldest lines are dropped. `logging.handlers.QueueListener` has
no such limit and writes each line on its own.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Event, Thread
from typing import Any

from ortet._util.log import ROOT_LOGGER
from ortet.server.errors import redact_tokens
from ortet.server.wire import to_json

LIBRARY_LOGGERS = ("uvicorn.error", "asyncio", "websockets")
"""Loggers of other packages whose warnings and errors belong into the server log."""

_MAX_QUEUED_LINES = 20_000
_BATCH_SECONDS = 0.02
"""Time for which lines are collected before they are written together."""

_SERVER_LOGGER = "ortet.server"


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object, without the secret part of any token.

    `extra={"fields": {...}}` of a logging call adds fields. An exception adds its class, its
    message and the source lines of its traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        now = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": now.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage().strip(),
        }
        if not record.name.startswith(_SERVER_LOGGER):
            line["logger"] = record.name
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line |= {"error": type(error).__name__, "said": str(error), "where": _frames(error)}
        line |= getattr(record, "fields", {})
        return redact_tokens(to_json(line)).decode()


def _frames(error: BaseException) -> list[str]:
    return [
        f"{frame.filename}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]


class QueuedHandler(logging.Handler):
    """Writes records from a thread of its own. `write` takes bytes and may block."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        super().__init__()
        self._write = write
        self._records: deque[logging.LogRecord] = deque(maxlen=_MAX_QUEUED_LINES)
        self._has_records = Event()
        self._stop = False
        self._thread = Thread(target=self._run, name="ortet-log", daemon=True)
        self._thread.start()

    def createLock(self) -> None:  # noqa: N802 - the name is given by logging
        """Use no lock: appending to the queue is atomic, and only the thread formats."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record. If the queue is full, the oldest record is dropped."""
        self._records.append(record)
        if not self._has_records.is_set():
            self._has_records.set()

    def close(self) -> None:
        """Write all queued records; wait at most two seconds for the reader."""
        self._stop = True
        self._has_records.set()
        self._thread.join(2.0)
        super().close()

    def _run(self) -> None:
        while not self._stop:
            self._has_records.wait()
            if not self._stop:
                time.sleep(_BATCH_SECONDS)
            self._has_records.clear()
            self._drain()
        self._drain()

    def _drain(self) -> None:
        lines = []
        while self._records:
            lines.append(self.format(self._records.popleft()) + "\n")
        if lines:
            try:
                self._write("".join(lines).encode())
            except (OSError, ValueError):  # standard error is closed
                return


@contextmanager
def log_to_stderr(*, debug: bool) -> Iterator[None]:
    """Write the records of Ortet and of `LIBRARY_LOGGERS` to standard error, within the block.

    Args:
        debug: Also write records of Ortet below INFO.
    """
    handler = QueuedHandler(_write_stderr)
    handler.setFormatter(JsonFormatter())
    ours = logging.getLogger(ROOT_LOGGER)
    loggers = [ours, *map(logging.getLogger, LIBRARY_LOGGERS)]
    ours.setLevel(logging.DEBUG if debug else logging.INFO)
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = True
        ours.setLevel(logging.NOTSET)
        handler.close()


def _write_stderr(data: bytes) -> None:
    """Write and flush, so that no line is lost if the server is killed."""
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()

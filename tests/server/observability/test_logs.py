"""The server log: the fields of a line, and a full queue."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from threading import Event

from ortet.server.observability import logs
from ortet.server.observability.logs import JsonFormatter, QueuedHandler


def record(message: str, name: str = "ortet.server.x", **more: object) -> logging.LogRecord:
    made = logging.getLogger(name).makeRecord(
        name, logging.WARNING, __file__, 1, message, (), exc_info=None
    )
    made.__dict__.update(more)
    return made


def line(one: logging.LogRecord) -> dict[str, object]:
    text = JsonFormatter().format(one)
    assert "\n" not in text
    found: dict[str, object] = json.loads(text)
    return found


def test_line_has_the_time_the_level_the_message_and_its_fields() -> None:
    found = line(record("busy\n", created=0.5, fields={"count": 3}))
    assert found == {
        "time": "1970-01-01T00:00:00.500Z",
        "level": "warning",
        "message": "busy",
        "count": 3,
    }


def test_line_of_another_package_names_its_logger() -> None:
    assert line(record("x", "uvicorn.error"))["logger"] == "uvicorn.error"


def test_line_of_an_exception_has_its_source_lines() -> None:
    try:
        raise OSError("disk\nfull")
    except OSError as error:
        found = line(record("bug", exc_info=(type(error), error, error.__traceback__)))
    assert (found["error"], found["said"]) == ("OSError", "disk\nfull")
    where = found["where"]
    assert isinstance(where, list)
    assert [__file__ in one for one in where] == [True]


def test_oldest_lines_are_dropped_if_nobody_reads() -> None:
    written, begun, go = bytearray(), Event(), Event()

    def write(data: bytes) -> None:
        begun.set()
        go.wait()
        written.extend(data)

    handler = QueuedHandler(write)
    handler.handle(record("first"))
    begun.wait()
    for number in range(logs._MAX_QUEUED_LINES + 2):
        handler.handle(record(f"line {number}"))
    go.set()
    handler.close()
    lines = written.decode().splitlines()
    assert (lines[0], lines[1]) == ("first", "line 2")
    assert lines[-1] == f"line {logs._MAX_QUEUED_LINES + 1}"


def test_records_of_the_library_reach_standard_error_only_within_the_block() -> None:
    code = """
from ortet._util.log import get_logger
from ortet.server.observability.logs import log_to_stderr
log = get_logger("ortet.store.lease")
log.warning("before")
with log_to_stderr(debug=False):
    log.debug("debug")
    log.info("within")
log.warning("after")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    lines = [json.loads(text) for text in done.stderr.splitlines()]
    assert [(one["logger"], one["message"]) for one in lines] == [("ortet.store.lease", "within")]

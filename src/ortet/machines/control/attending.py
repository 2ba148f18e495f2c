"""Attend a run inside a live machine to its end, as `command.attend` does one on the host."""

from __future__ import annotations

import time
from binascii import a2b_base64
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from ortet.errors import OrtetError
from ortet.machines.base import Output, Result
from ortet.machines.command import Kept, not_started
from ortet.machines.control.jobs import Ask, exit_code, refused, to_text
from ortet.machines.standalone.process_tree import GIVE_UP

_FEED = 1 << 19  # bytes of input in one request
_STEP = 20.0  # seconds that one request waits; longer waits are repeated
_Name = Literal["stdout", "stderr"]
_STREAMS: tuple[_Name, _Name] = ("stdout", "stderr")


def attend_inside(
    ask: Ask,
    start: Callable[[], int],
    *,
    program: str,
    timeout: float | None,
    stdin: bytes | None,
    output: Output | None,
    limit: int,
) -> tuple[Result, bool]:
    """Start a run, feed it and read it until it ends; returns also whether anything still lives.

    At the time-out, and when `output` raises, it is killed with all it started.
    """
    began = time.monotonic()
    try:
        number = start()
    except OSError as error:
        return not_started(program, error, time.monotonic() - began), False
    run = _Run(ask, number, stdin=stdin, output=output, limit=limit)
    try:
        timed_out = not run.until(None if timeout is None else began + timeout)
        if timed_out:
            run.kill()
            run.until(time.monotonic() + GIVE_UP)
    except BaseException:
        with suppress(OrtetError):
            run.kill()
            ask({"do": "wait", "id": number, "wait": GIVE_UP}, GIVE_UP)  # and so forget it
        raise
    duration = time.monotonic() - began
    code = 124 if timed_out else run.code
    stdout, stderr = (run.kept[stream].text() for stream in _STREAMS)
    return Result(code, stdout, stderr, duration, timed_out), run.busy


class _Run:
    def __init__(
        self, ask: Ask, number: int, *, stdin: bytes | None, output: Output | None, limit: int
    ) -> None:
        self.kept = {stream: Kept(limit) for stream in _STREAMS}
        self.code = 0
        self.busy = True
        self._ask = ask
        self._number = number
        self._stdin = stdin
        self._output = output
        self._fed = 0  # bytes of stdin that were accepted
        self._cursors = [0, 0]

    def until(self, deadline: float | None) -> bool:
        """Read until it has ended (True) or the deadline passes (False)."""
        while True:
            left = _STEP if deadline is None else min(deadline - time.monotonic(), _STEP)
            if left <= 0:
                return False
            reply = self._ask(self._request(left), left)
            if "error" in reply or "bad" in reply:
                raise refused(reply, "run")
            self._fed = reply["taken"]
            for number, stream in enumerate(_STREAMS):
                self._took(stream, a2b_base64(reply[stream]), reply["missed"][number])
            self._cursors = reply["cursors"]
            if reply["ended"]:
                self.code, self.busy = exit_code(reply["code"]) or 0, reply["busy"]
                return True

    def kill(self) -> None:
        self._ask({"do": "kill", "id": self._number}, 2 * GIVE_UP)

    def _request(self, wait: float) -> dict[str, Any]:
        request = {"do": "follow", "id": self._number, "cursors": self._cursors, "wait": wait}
        if self._stdin is None:
            return request
        part = self._stdin[self._fed : self._fed + _FEED]
        last = self._fed + len(part) >= len(self._stdin)
        return {**request, "data": to_text(part), "at": self._fed, "eof": last}

    def _took(self, stream: _Name, data: bytes, missed: int) -> None:
        if missed:  # only when the connection broke by itself: output then does not wait for us
            data = f"\n[... {missed} bytes lost ...]\n".encode() + data
        if data:
            self.kept[stream].add(data)
            if self._output is not None:
                self._output(stream, data)

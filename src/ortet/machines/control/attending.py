"""Follows a run inside a machine to its end, as `command` does for a run on the host."""

from __future__ import annotations

import time
from binascii import a2b_base64
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from ortet.errors import OrtetError
from ortet.machines.base import OutputCallback, Result
from ortet.machines.command import HeadTailBuffer, start_failure_result
from ortet.machines.control.jobs import Ask, encode_base64, reply_error, shell_exit_code
from ortet.machines.standalone.process_tree import KILL_TIMEOUT_SECONDS

_INPUT_CHUNK_BYTES = 1 << 19  # bytes of input in one request
_REQUEST_WAIT_SECONDS = 20.0  # longest wait of one request; longer waits are repeated
_StreamName = Literal["stdout", "stderr"]
_STREAMS: tuple[_StreamName, _StreamName] = ("stdout", "stderr")


def run_in_machine(
    ask: Ask,
    start: Callable[[], int],
    *,
    program: str,
    timeout: float | None,
    stdin: bytes | None,
    output: OutputCallback | None,
    limit: int,
) -> tuple[Result, bool]:
    """Start a run, write its input and read its output until it ends.

    At the time-out, and if `output` raises, the run is killed with all processes it started.
    Returns the result, and True if any process of the machine is still alive.
    """
    began = time.monotonic()
    try:
        number = start()
    except OSError as error:
        return start_failure_result(program, error, time.monotonic() - began), False
    run = _MachineRun(ask, number, stdin=stdin, output=output, limit=limit)
    try:
        timed_out = not run.read_until(None if timeout is None else began + timeout)
        if timed_out:
            run.kill()
            run.read_until(time.monotonic() + KILL_TIMEOUT_SECONDS)
    except BaseException:
        with suppress(OrtetError):
            run.kill()
            ask(
                {"do": "wait", "id": number, "wait": KILL_TIMEOUT_SECONDS}, KILL_TIMEOUT_SECONDS
            )  # waiting also makes pid 1 forget it
        raise
    duration = time.monotonic() - began
    code = 124 if timed_out else run.code
    stdout, stderr = (run.captured[stream].text() for stream in _STREAMS)
    return Result(code, stdout, stderr, duration, timed_out), run.busy


class _MachineRun:
    def __init__(
        self,
        ask: Ask,
        job_id: int,
        *,
        stdin: bytes | None,
        output: OutputCallback | None,
        limit: int,
    ) -> None:
        self.captured = {stream: HeadTailBuffer(limit) for stream in _STREAMS}
        self.code = 0
        self.busy = True
        self._ask = ask
        self._job_id = job_id
        self._stdin = stdin
        self._output = output
        self._accepted_bytes = 0  # bytes of stdin that were accepted
        self._cursors = [0, 0]

    def read_until(self, deadline: float | None) -> bool:
        """Read until the run has ended (True) or the deadline passes (False)."""
        while True:
            left = (
                _REQUEST_WAIT_SECONDS
                if deadline is None
                else min(deadline - time.monotonic(), _REQUEST_WAIT_SECONDS)
            )
            if left <= 0:
                return False
            reply = self._ask(self._request(left), left)
            if "error" in reply or "bad" in reply:
                raise reply_error(reply, "run")
            self._accepted_bytes = reply["taken"]
            for number, stream in enumerate(_STREAMS):
                self._add_output(stream, a2b_base64(reply[stream]), reply["missed"][number])
            self._cursors = reply["cursors"]
            if reply["ended"]:
                self.code, self.busy = shell_exit_code(reply["code"]) or 0, reply["busy"]
                return True

    def kill(self) -> None:
        self._ask({"do": "kill", "id": self._job_id}, 2 * KILL_TIMEOUT_SECONDS)

    def _request(self, wait: float) -> dict[str, Any]:
        request = {"do": "follow", "id": self._job_id, "cursors": self._cursors, "wait": wait}
        if self._stdin is None:
            return request
        part = self._stdin[self._accepted_bytes : self._accepted_bytes + _INPUT_CHUNK_BYTES]
        last = self._accepted_bytes + len(part) >= len(self._stdin)
        return {**request, "data": encode_base64(part), "at": self._accepted_bytes, "eof": last}

    def _add_output(self, stream: _StreamName, data: bytes, missed: int) -> None:
        # Bytes are lost only if the connection broke: the run then does not wait for its reader.
        if missed:
            data = f"\n[... {missed} bytes lost ...]\n".encode() + data
        if data:
            self.captured[stream].add(data)
            if self._output is not None:
                self._output(stream, data)

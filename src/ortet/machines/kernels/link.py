"""The connection to one kernel process: messages, streamed output, interrupts, end of process.

Nothing that a kernel sends is executed. No wait for a kernel is unbounded unless the caller asked
for it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from ortet.machines.base import OutputCallback
from ortet.machines.command import HeadTailBuffer
from ortet.machines.kernel_host import KernelChannel, KernelProcess
from ortet.machines.poll import MAX_POLL_SECONDS
from ortet.machines.standalone import ipc

# Results of code cells, parsed from the replies of a kernel, which are not trusted.


class TracebackFrame(msgspec.Struct, frozen=True):
    """One line of a traceback. `source` is its text, also for lines of a cell."""

    file: str
    line: int
    function: str
    source: str


class CellError(msgspec.Struct, frozen=True):
    """An exception in the executed code. `text` is the whole traceback as Python prints it."""

    type: str
    message: str
    frames: list[TracebackFrame]
    text: str

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class CellResult(msgspec.Struct, frozen=True):
    """The result of one `Kernel.run`.

    Attributes:
        value: Value of the last expression if it is plain data (a tuple becomes a list), otherwise
            None.
        repr: The value as Python prints it.
        stdout: Standard output.
        stderr: Standard error.
        error: The exception, or None.
        duration: Seconds that the code ran.
        timed_out: True if the time-out interrupted the code. `error` then holds the interrupt.
    """

    value: Any = None
    repr: str = ""
    stdout: str = ""
    stderr: str = ""
    error: CellError | None = None
    duration: float = 0.0
    timed_out: bool = False


class KernelVariable(msgspec.Struct, frozen=True):
    """A variable declared with `Kernel.vars`.

    Attributes:
        name: Name of the variable.
        type: Name of its type.
        why: Why it cannot be saved or loaded; "" if it can.
    """

    name: str
    type: str
    why: str = ""

    @property
    def kept(self) -> bool:
        """True if the variable can be saved."""
        return not self.why


def parse_cell_result(
    reply: Mapping[str, Any], *, stdout: str, stderr: str, duration: float, timed_out: bool
) -> CellResult:
    """Parse the reply to a run. Raises ValueError or TypeError if no kernel would send it."""
    error = reply.get("error")
    return CellResult(
        value=_storable_value(reply.get("value")),
        repr=_storable_text(reply.get("repr", "")),
        stdout=stdout,
        stderr=stderr,
        error=None if error is None else _parse_error(error),
        duration=duration,
        timed_out=timed_out,
    )


def parse_variables(items: Any) -> list[KernelVariable]:
    """Parse a list of variables. Raises ValueError if no kernel would send it."""
    try:
        return [
            KernelVariable(
                _storable_text(one["name"]),
                _storable_text(one["type"]),
                _storable_text(one.get("why", "")),
            )
            for one in items
        ]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError("no list of variables") from error


def _parse_error(reply: Any) -> CellError:
    try:
        frames = [
            TracebackFrame(
                _storable_text(file), int(line), _storable_text(function), _storable_text(source)
            )
            for file, line, function, source in reply["frames"]
        ]
        return CellError(
            _storable_text(reply["type"]),
            _storable_text(reply["message"]),
            frames,
            _storable_text(reply["text"]),
        )
    except (TypeError, KeyError) as error:
        raise ValueError("no error of a cell") from error


def _storable_text(value: Any) -> str:
    """Return text that can be stored: lone surrogates are replaced."""
    if not isinstance(value, str):
        raise TypeError("no text")
    return value.encode("utf-8", "replace").decode()


def _storable_value(value: Any) -> Any:
    """Return the value if it is plain data that can be stored.

    Raises ValueError or TypeError if it is not.
    """
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


MAX_STREAM_BYTES = 8 << 20
"""Bytes of each stream that a CellResult keeps; the `output` callback sees all of them."""

INTERRUPT_GRACE_SECONDS = 10.0
"""Seconds between the interrupt at a time-out and the kill of a kernel that ignores it."""

_REPEAT_INTERRUPT_SECONDS = (
    1.0  # delay before the second interrupt; it doubles for each one after it
)

_CHUNK_BYTES = 1 << 20
_MESSAGE_TIMEOUT_SECONDS = 30.0  # for the rest of a message that has begun
_STREAM_NAMES = ("stdout", "stderr")


class KernelGone(Exception):
    """The kernel process has ended, or it sent an invalid message.

    `why` is the reason, if known; `stderr` is what the process wrote to its stderr.
    """

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.stderr = ""


class KernelReply(NamedTuple):
    """A reply, and the output that was printed before it."""

    reply: dict[str, Any]
    fds: list[int]
    stdout: str
    stderr: str
    timed_out: bool


class KernelLink:
    """Connection to one kernel process.

    One thread at a time may send requests; any thread may call `interrupt` and `signal`.
    """

    is_disconnected = False  # during a snapshot

    def __init__(self, process: KernelProcess, mark: str) -> None:
        self.pid = process.pid
        self.mark = mark
        self.pidfd = process.pidfd
        self._lock = threading.Lock()
        self._attach(process.channel)

    def _attach(self, channel: KernelChannel) -> None:
        self._sock = channel.sock
        self._streams = {channel.out: "stdout", channel.err: "stderr"}
        self._unsent_fds = channel.theirs  # not passed to the kernel yet
        for fd in self._streams:
            os.set_blocking(fd, False)

    def wait_greeting(self, timeout: float) -> None:
        """Wait for the kernel's first message, and pass it the streams it was not started with."""
        self.request(None, timeout=timeout)
        if self._unsent_fds:
            try:
                self.request({"do": "streams"}, self._unsent_fds, timeout=timeout)
            finally:
                self._close_unsent_fds()

    def disconnect(self) -> None:
        """Close the connection, so that no descriptor of the kernel leads out of its machine."""
        self.request({"do": "leave"}, timeout=_MESSAGE_TIMEOUT_SECONDS)
        self.is_disconnected = True
        with suppress(OSError):
            self._sock.settimeout(_MESSAGE_TIMEOUT_SECONDS)
            while self._sock.recv(1):
                pass
        self._hang_up()

    def reconnect(self, process: KernelProcess, timeout: float) -> None:
        """Attach to the same kernel process again after `disconnect`."""
        os.close(process.pidfd)
        self._attach(process.channel)
        self.wait_greeting(timeout)
        self.is_disconnected = False

    def _hang_up(self) -> None:
        self._sock.close()
        for fd in self._streams:
            os.close(fd)
        self._streams = {}
        self._close_unsent_fds()

    def _close_unsent_fds(self) -> None:
        for fd in self._unsent_fds:
            os.close(fd)
        self._unsent_fds = []

    @property
    def alive(self) -> bool:
        """True while the process runs and its pidfd is open."""
        with self._lock:
            return self.pidfd >= 0 and not readable(self.pidfd)

    def request(
        self,
        message: dict[str, Any] | None,
        fds: Sequence[int] = (),
        *,
        timeout: float | None = None,
        output: OutputCallback | None = None,
    ) -> KernelReply:
        """Send a message, or only listen if it is None, and collect output until the reply arrives.

        At the time-out the kernel is interrupted, repeatedly if needed, and finally killed. Raises
        KernelGone if the process ends or is killed.
        """
        if message is not None:
            self.send(message, fds)
        streams = {name: HeadTailBuffer(MAX_STREAM_BYTES) for name in _STREAM_NAMES}
        deadline = None if timeout is None else time.monotonic() + timeout
        timed_out, pauses = False, _interrupt_pauses(INTERRUPT_GRACE_SECONDS)
        poll = select.poll()
        for fd in (self._sock.fileno(), self.pidfd, *self._streams):
            poll.register(fd, select.POLLIN)
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                pause = next(pauses, None)
                if pause is None:
                    self.signal(signal.SIGKILL)
                    raise KernelGone(f"it ignored the interrupt at its time-out of {timeout:g} s")
                timed_out, deadline = True, time.monotonic() + pause
                self.interrupt()
                continue
            ready = {
                fd
                for fd, _ in poll.poll(
                    None if left is None else min(left, MAX_POLL_SECONDS) * 1000 + 1
                )
            }
            for fd, name in self._streams.items():
                if fd in ready and not self._read(fd, name, streams[name], output):
                    poll.unregister(fd)
            if self._sock.fileno() in ready or self.pidfd in ready:
                try:
                    reply, passed = self._receive(dead=self.pidfd in ready)
                except KernelGone as gone:
                    self._drain(streams, output)
                    gone.stderr = streams["stderr"].text()
                    raise
                self._drain(streams, output)
                return KernelReply(
                    reply, passed, streams["stdout"].text(), streams["stderr"].text(), timed_out
                )

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message without waiting; the first half of `request`."""
        try:
            ipc.send(self._sock, message, fds)
        except (ipc.ConnectionClosed, OSError) as error:
            raise KernelGone from error

    def wait_exit(self, timeout: float) -> bool:
        """Return True if the process ends within `timeout` seconds.

        A process closes its socket shortly before it ends.
        """
        return self.pidfd < 0 or readable(self.pidfd, timeout)

    def interrupt(self) -> None:
        self.signal(signal.SIGINT)

    def signal(self, number: signal.Signals) -> None:
        with self._lock, suppress(OSError):
            if self.pidfd >= 0:
                signal.pidfd_send_signal(self.pidfd, number)

    def hang_up_and_wait(self, timeout: float) -> None:
        """Close the connection, and wait until the process has ended because of that."""
        with self._lock:
            self._hang_up()
        self.wait_exit(timeout)
        self.close()

    def close(self) -> None:
        """Close all descriptors. A living process ends when it notices the closed connection."""
        with self._lock:
            self._hang_up()
            pidfd, self.pidfd = self.pidfd, -1
            if pidfd >= 0:
                os.close(pidfd)

    def _receive(self, *, dead: bool) -> tuple[dict[str, Any], list[int]]:
        if dead and not readable(self._sock.fileno()):
            raise KernelGone
        self._sock.settimeout(_MESSAGE_TIMEOUT_SECONDS)
        try:
            reply, fds = ipc.receive(self._sock)
            if not isinstance(reply, dict):
                raise KernelGone("it said something that no kernel says")
            return reply, fds
        except (ipc.ConnectionClosed, TimeoutError) as error:
            raise KernelGone from error
        except (ValueError, RecursionError) as error:
            raise KernelGone("it said something that no kernel says") from error
        finally:
            self._sock.settimeout(None)

    def _read(
        self, fd: int, name: str, captured: HeadTailBuffer, output: OutputCallback | None
    ) -> int:
        """Return the number of bytes read.

        Returns 0 at the end of the stream, and -1 if nothing is available.
        """
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return -1
        captured.add(data)
        if data and output is not None:
            output(name, data)  # type: ignore[arg-type]
        return len(data)

    def _drain(self, captured: dict[str, HeadTailBuffer], output: OutputCallback | None) -> None:
        """Collect the output written before the reply, at most one chunk for each stream.

        Child processes of a cell may write without end, so the amount is bounded.
        """
        for fd, name in self._streams.items():
            left = _CHUNK_BYTES
            while left > 0 and (got := self._read(fd, name, captured[name], output)) > 0:
                left -= got


def _interrupt_pauses(grace: float) -> Iterator[float]:
    """Yield the pauses between interrupts. An interrupt before the code has begun is lost."""
    pause = min(_REPEAT_INTERRUPT_SECONDS, grace / 2)
    while grace > 0:
        yield min(pause, grace)
        grace, pause = grace - pause, 2 * pause


def readable(fd: int, timeout: float = 0) -> bool:
    """Return True if a descriptor becomes readable within `timeout` seconds.

    A pidfd is readable once its process has ended.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))

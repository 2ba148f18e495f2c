"""A program that pid 1 of a machine started: its process, its streams, its exit code.

Standard library only: pid 1 loads this file as a plain module.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import signal
import struct
import termios
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortet.machines.standalone import event_loop, procfs, ring_buffer, spawn, streams
else:
    import event_loop
    import procfs
    import ring_buffer
    import spawn
    import streams

_STDIN_FROM_NULL = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
READER_AWAY = object()
"""Marks a run whose reader has no connection at the moment."""


class JobProcess:
    """A job, from its start until it is forgotten."""

    def __init__(self, number: int, request: dict[str, Any]) -> None:
        self.id = number
        self.name: str = request.get("name") or ""
        self.kind: str = request["kind"]
        self.argv: list[str] = request["argv"]
        self.cwd: str = request["cwd"]
        self.mark: str = request.get("mark") or ""
        self.declared: bool = bool(request.get("declared"))
        self.tty: list[int] | None = request.get("tty")
        self.started_at = time.time()
        self.pid = 0
        self.code: int | None = None
        self.alive_at_start: set[procfs.ProcessIdentity] = set()
        """Processes that were alive when the job started."""
        self.ran_alone = True
        """True if no other job ran at the same time.

        An orphan that belongs to no other job is then a process of this job.
        """
        self.reader: object = None
        """The connection that follows the job to its end.

        Output is kept until it was read there.
        """
        self.reader_deadline = math.inf
        """Time until which a reader with a broken connection is waited for."""
        self.input: streams.JobInput | None = None
        self.outputs: dict[str, streams.JobOutput] = {}
        self.rings: dict[str, ring_buffer.RingBuffer] = {}

    def start(self, loop: event_loop.EventLoop, env: dict[str, str], *, stdin: bool) -> None:
        """Start the program. Raises WrongDirectory if its working directory cannot be entered."""
        if self.tty is None:
            self._start_with_pipes(loop, env, stdin=stdin)
        else:
            self._start_with_terminal(loop, env, self.tty)

    def _start_with_pipes(
        self, loop: event_loop.EventLoop, env: dict[str, str], *, stdin: bool
    ) -> None:
        patient = self.reader is not None
        ours: list[int] = []
        theirs: list[int] = []
        try:
            for is_input in (True, False, False) if stdin else (False, False):
                reader, writer = os.pipe2(os.O_CLOEXEC)
                ours.append(writer if is_input else reader)
                theirs.append(reader if is_input else writer)
            actions = spawn.dup_actions(theirs)
            if not stdin:
                actions = [_STDIN_FROM_NULL, *spawn.dup_actions([-1, *theirs])[1:]]
            self.pid = self._spawn(env, actions)
        except BaseException:
            _close(ours)
            raise
        finally:
            _close(theirs)
        for name in ("stdout", "stderr"):
            self.rings[name] = ring_buffer.RingBuffer(keep_unread=patient)
        shared = []
        if self.kind == "service":  # people read both streams together, in order of arrival
            self.rings["output"] = ring_buffer.RingBuffer()
            shared = [self.rings["output"]]
        if stdin:
            self.input = streams.PipeInput(loop, ours.pop(0))
        for name, fd in zip(("stdout", "stderr"), ours, strict=True):
            self.outputs[name] = streams.PipeOutput(loop, fd, [self.rings[name], *shared])

    def _start_with_terminal(
        self, loop: event_loop.EventLoop, env: dict[str, str], size: list[int]
    ) -> None:
        ours, theirs = os.openpty()
        try:
            _set_terminal_size(ours, *size)
            # When a new session leader opens it, it becomes the controlling terminal.
            path = os.ttyname(theirs)
            actions: list[spawn.SpawnAction] = [(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDWR, 0)]
            actions += [(os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
            self.pid = self._spawn(env, actions)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self.rings = {name: ring_buffer.RingBuffer() for name in ("stdout", "stderr")}
        terminal = streams.JobTerminal(loop, ours, [self.rings["stdout"]])
        self.outputs["stdout"], self.input = terminal, terminal.input

    def _spawn(self, env: dict[str, str], actions: list[spawn.SpawnAction]) -> int:
        try:
            os.chdir(self.cwd)
        except OSError as error:
            raise WrongDirectory(error.errno, error.strerror) from error
        try:
            return spawn.spawn(self.argv, env, actions)
        finally:
            os.chdir("/")

    # while the job runs

    @property
    def alive(self) -> bool:
        return self.code is None

    def is_eof(self, stream: str) -> bool:
        """Return True if no more output can arrive."""
        output = self.outputs.get(stream)
        if output is None:
            return stream != "output" or all(one.eof for one in self.outputs.values())
        return output.eof

    def mark_ended(self, status: int) -> None:
        """Record the exit code, after all output of the process itself was read into the rings."""
        for output in self.outputs.values():
            output.read_rest()
        self.code = os.waitstatus_to_exitcode(status)
        if self.input is not None and not self.tty:
            self.input.close()

    def feed(self, rest: bytes, *, eof: bool) -> bytes:
        """Accept input, and return the part that could not be accepted yet.

        `eof` closes the input after the last byte.
        """
        if self.input is None:
            return b""
        if rest:
            rest = rest[self.input.feed(rest) :]
        if eof and not rest:
            self.input.end_input()
        return rest

    def acknowledge(self, stream: str, cursor: int) -> None:
        """Record that the reader has everything before `cursor`."""
        self.rings[stream].acknowledge(cursor)
        self.resume_reading(stream)

    def resume_reading(self, stream: str) -> None:
        """Read on, after the ring got room or a terminal may be in use again."""
        if stream in self.outputs:
            self.outputs[stream].update_watch()

    def set_reader(self, reader: object) -> None:
        """Set the connection that follows the job, if the job was started with a reader."""
        if self.reader is not None:
            self.reader, self.reader_deadline = reader, math.inf

    def detach_reader(self, seconds: float | None) -> None:
        """Wait for a reader that lost its connection.

        Waits for so many seconds, or, if None, for as long as a dump takes.
        """
        self.reader = READER_AWAY
        self.reader_deadline = math.inf if seconds is None else event_loop.deadline_after(seconds)

    def release_reader(self) -> None:
        """Stop waiting for a reader. From here on new output overwrites old output."""
        self.reader, self.reader_deadline = None, math.inf
        for ring in self.rings.values():
            ring.stop_waiting()
        for output in self.outputs.values():
            output.update_watch()

    def discard_output(self) -> None:
        """Drop the output, and read and discard what still arrives."""
        self.rings = {}
        for output in self.outputs.values():
            output.rings = []
            output.update_watch()

    def resize(self, rows: int, columns: int) -> None:
        if self.tty is None or self.outputs["stdout"].eof:
            raise OSError(errno.ENOTTY, "it has no terminal")
        _set_terminal_size(self.outputs["stdout"].fd, rows, columns)
        self.tty = [rows, columns]

    def signal(self, number: int, *, group: bool) -> bool:
        """Send a signal.

        Returns False if the job has ended: its pid may belong to another process.
        """
        if not self.alive:
            return False
        (os.killpg if group else os.kill)(self.pid, signal.Signals(number))
        return True

    def describe(self) -> dict[str, Any]:
        """Return the entry of this job in a listing."""
        return {
            "id": self.id,
            "name": self.name,
            "kind": self.kind,
            "pid": self.pid,
            "argv": self.argv,
            "cwd": self.cwd,
            "tty": self.tty,
            "declared": self.declared,
            "began": self.started_at,
            "code": self.code,
        }


class WrongDirectory(OSError):
    """The working directory cannot be entered."""


def _set_terminal_size(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)

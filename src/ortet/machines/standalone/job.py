"""One program that the pid 1 of a machine started: its process, its streams, how it ended.

Standard library only: the pid 1 of a machine loads this file by itself.
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
"""Who attends a run while its reader has no connection."""


class JobProcess:
    """From its start until it is forgotten."""

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
        """What was alive when it began."""
        self.ran_alone = True
        """No other job lived while it did: an orphan nobody claims is its own."""
        self.reader: object = None
        """The connection that follows it to its end; output waits for it."""
        self.reader_deadline = math.inf
        """How long one that broke is waited for."""
        self.input: streams.JobInput | None = None
        self.outputs: dict[str, streams.JobOutput] = {}
        self.rings: dict[str, ring_buffer.RingBuffer] = {}

    def start(self, loop: event_loop.EventLoop, env: dict[str, str], *, stdin: bool) -> None:
        """NotADirectoryError and the like with `filename` set when it is the directory's fault."""
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
        if self.kind == "service":  # what a person reads: both, as they came
            self.rings["output"] = ring_buffer.RingBuffer()
            shared = [self.rings["output"]]
        if stdin:
            self.input = streams.JobInput(loop, ours.pop(0))
        for name, fd in zip(("stdout", "stderr"), ours, strict=True):
            self.outputs[name] = streams.JobOutput(loop, fd, [self.rings[name], *shared])

    def _start_with_terminal(
        self, loop: event_loop.EventLoop, env: dict[str, str], size: list[int]
    ) -> None:
        ours, theirs = os.openpty()
        try:
            _set_terminal_size(ours, *size)
            # opened by the leader of a new session, it becomes the controlling terminal
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

    # while it lives

    @property
    def alive(self) -> bool:
        return self.code is None

    def is_eof(self, stream: str) -> bool:
        """Can nothing more come?"""
        output = self.outputs.get(stream)
        if output is None:
            return stream != "output" or all(one.eof for one in self.outputs.values())
        return output.eof

    def mark_ended(self, status: int) -> None:
        """All that the process itself wrote is in the rings before it counts as ended."""
        for output in self.outputs.values():
            output.read_rest()
        self.code = os.waitstatus_to_exitcode(status)
        if self.input is not None and not self.tty:
            self.input.close()

    def feed(self, rest: bytes, *, eof: bool) -> bytes:
        """Returns what could not be accepted yet; `eof` ends the input behind the last byte."""
        if self.input is None:
            return b""
        if rest:
            rest = rest[self.input.feed(rest) :]
        if eof and not rest:
            self.input.end_input()
        return rest

    def acknowledge(self, stream: str, cursor: int) -> None:
        """Who follows it has all before `cursor`."""
        self.rings[stream].acknowledge(cursor)
        self.resume_reading(stream)

    def resume_reading(self, stream: str) -> None:
        """There may be room now, or somebody at the terminal again."""
        if stream in self.outputs:
            self.outputs[stream].update_watch()

    def set_reader(self, reader: object) -> None:
        if self.reader is not None:
            self.reader, self.reader_deadline = reader, math.inf

    def detach_reader(self, seconds: float | None) -> None:
        """Its reader is away; wait so long for it, None for as long as a freeze takes."""
        self.reader = READER_AWAY
        self.reader_deadline = math.inf if seconds is None else event_loop.deadline_after(seconds)

    def release_reader(self) -> None:
        """Nobody follows it to its end: from here on old output gives way to new."""
        self.reader, self.reader_deadline = None, math.inf
        for ring in self.rings.values():
            ring.stop_waiting()
        for output in self.outputs.values():
            output.update_watch()

    def discard_output(self) -> None:
        """Its output goes; an ended job's terminal too."""
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
        """False when it has ended: its pid may be another's."""
        if not self.alive:
            return False
        (os.killpg if group else os.kill)(self.pid, signal.Signals(number))
        return True

    def describe(self) -> dict[str, Any]:
        """What a listing says of it."""
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

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

_NULL = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
AWAY = object()
"""Who attends a run while its reader has no connection."""


class Job:
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
        self.began = time.time()
        self.pid = 0
        self.code: int | None = None
        self.before: set[procfs.Birth] = set()
        """What was alive when it began."""
        self.alone = True
        """No other job lived while it did: an orphan nobody claims is its own."""
        self.attended: object = None
        """The connection that follows it to its end; output waits for it."""
        self.until = math.inf
        """How long one that broke is waited for."""
        self.input: streams.Input | None = None
        self.outputs: dict[str, streams.Output] = {}
        self.rings: dict[str, ring_buffer.Ring] = {}

    def start(self, loop: event_loop.Loop, env: dict[str, str], *, stdin: bool) -> None:
        """NotADirectoryError and the like with `filename` set when it is the directory's fault."""
        if self.tty is None:
            self._with_pipes(loop, env, stdin=stdin)
        else:
            self._with_terminal(loop, env, self.tty)

    def _with_pipes(self, loop: event_loop.Loop, env: dict[str, str], *, stdin: bool) -> None:
        patient = self.attended is not None
        ours: list[int] = []
        theirs: list[int] = []
        try:
            for is_input in (True, False, False) if stdin else (False, False):
                reader, writer = os.pipe2(os.O_CLOEXEC)
                ours.append(writer if is_input else reader)
                theirs.append(reader if is_input else writer)
            actions = spawn.onto(theirs)
            if not stdin:
                actions = [_NULL, *spawn.onto([-1, *theirs])[1:]]
            self.pid = self._spawn(env, actions)
        except BaseException:
            _close(ours)
            raise
        finally:
            _close(theirs)
        for name in ("stdout", "stderr"):
            self.rings[name] = ring_buffer.Ring(patient=patient)
        shared = []
        if self.kind == "service":  # what a person reads: both, as they came
            self.rings["output"] = ring_buffer.Ring()
            shared = [self.rings["output"]]
        if stdin:
            self.input = streams.Input(loop, ours.pop(0))
        for name, fd in zip(("stdout", "stderr"), ours, strict=True):
            self.outputs[name] = streams.Output(loop, fd, [self.rings[name], *shared])

    def _with_terminal(self, loop: event_loop.Loop, env: dict[str, str], size: list[int]) -> None:
        ours, theirs = os.openpty()
        try:
            _resize(ours, *size)
            # opened by the leader of a new session, it becomes the controlling terminal
            path = os.ttyname(theirs)
            actions: list[spawn.Action] = [(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDWR, 0)]
            actions += [(os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
            self.pid = self._spawn(env, actions)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self.rings = {name: ring_buffer.Ring() for name in ("stdout", "stderr")}
        terminal = streams.Terminal(loop, ours, [self.rings["stdout"]])
        self.outputs["stdout"], self.input = terminal, terminal.input

    def _spawn(self, env: dict[str, str], actions: list[spawn.Action]) -> int:
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

    def eof(self, stream: str) -> bool:
        """Can nothing more come?"""
        output = self.outputs.get(stream)
        if output is None:
            return stream != "output" or all(one.eof for one in self.outputs.values())
        return output.eof

    def ended(self, status: int) -> None:
        """All that the process itself wrote is in the rings before it counts as ended."""
        for output in self.outputs.values():
            output.rest()
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
            self.input.end()
        return rest

    def taken(self, stream: str, cursor: int) -> None:
        """Who follows it has all before `cursor`."""
        self.rings[stream].taken(cursor)
        self.look_again(stream)

    def look_again(self, stream: str) -> None:
        """There may be room now, or somebody at the terminal again."""
        if stream in self.outputs:
            self.outputs[stream].regulate()

    def attend(self, reader: object) -> None:
        if self.attended is not None:
            self.attended, self.until = reader, math.inf

    def leave(self, seconds: float | None) -> None:
        """Its reader is away; wait so long for it, None for as long as a freeze takes."""
        self.attended = AWAY
        self.until = math.inf if seconds is None else event_loop.after(seconds)

    def loosen(self) -> None:
        """Nobody follows it to its end: from here on old output gives way to new."""
        self.attended, self.until = None, math.inf
        for ring in self.rings.values():
            ring.loosen()
        for output in self.outputs.values():
            output.regulate()

    def forget(self) -> None:
        """Its output goes; an ended job's terminal too."""
        self.rings = {}
        for output in self.outputs.values():
            output.rings = []
            output.regulate()

    def resize(self, rows: int, columns: int) -> None:
        if self.tty is None or self.outputs["stdout"].eof:
            raise OSError(errno.ENOTTY, "it has no terminal")
        _resize(self.outputs["stdout"].fd, rows, columns)
        self.tty = [rows, columns]

    def signal(self, number: int, *, group: bool) -> bool:
        """False when it has ended: its pid may be another's."""
        if not self.alive:
            return False
        (os.killpg if group else os.kill)(self.pid, signal.Signals(number))
        return True

    def told(self) -> dict[str, Any]:
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
            "began": self.began,
            "code": self.code,
        }


class WrongDirectory(OSError):
    """The working directory cannot be entered."""


def _resize(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)

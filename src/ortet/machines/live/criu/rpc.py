"""The RPC protocol of CRIU: requests, notifications and replies.

Only the messages that Ortet uses are here. The field numbers are those of CRIU's rpc.proto.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ortet.errors import Unavailable
from ortet.machines.live.criu.options import common_options, dump_options, restore_options
from ortet.machines.live.criu.protobuf import encode_field, parse_message
from ortet.machines.poll import poll_readable

_DUMP, _RESTORE, _NOTIFY = 1, 2, 6
_MAX_MESSAGE_BYTES = 1 << 20
_NOTIFY_POINTS = (b"post-dump", b"pre-resume")  # processes are stopped and complete
_IGNORED_ERROR = "rlimit: Can't setup RLIMIT_NOFILE"  # CRIU works without it


class CriuError(Exception):
    """CRIU reported a failure. `log` is the file with the reason."""

    def __init__(self, operation: str, log: Path) -> None:
        super().__init__(operation)
        self.log = log


class CriuWorker:
    """One `criu swrk` process, which performs one operation and then ends.

    `wait_started` waits until it runs; `on_close` is called when the worker is closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        wait_started: Callable[[], None],
        on_close: Callable[[], None],
        *,
        pid: int = 0,
    ) -> None:
        self.pid = pid
        """Pid of CRIU itself, for a worker that restores."""
        self._sock = sock
        self._wait_started = wait_started
        self._on_close = on_close

    def dump(
        self,
        pid: int,
        images: Path,
        *,
        external: Sequence[str],
        on_frozen: Callable[[], None],
        watched: Sequence[str] = (),
        leave_running: bool = True,
    ) -> None:
        """Write the process tree of `pid` to a directory.

        If the dump fails, the processes continue as before.

        Args:
            external: mounts and networks that are not part of the dump.
            on_frozen: called while the processes are stopped.
            watched: directories that CRIU searches for files watched by inotify.
            leave_running: let the processes continue after the dump.
        """
        options = dump_options(pid, external=external, watched=watched, leave_running=leave_running)
        reply = self._call(_DUMP, images, images, options, lambda _: on_frozen())
        if not reply.get(2, [0])[0]:
            raise CriuError("dump", images / "dump.log")

    def restore(
        self,
        images: Path,
        work_dir: Path,
        *,
        root: Path,
        external: Sequence[str],
        network_fd: int,
        lazy_pages: bool = False,
        on_restored: Callable[[int], None] | None = None,
    ) -> int:
        """Restore the process tree of a dump below `root`, and return its pid.

        Args:
            lazy_pages: memory is loaded at first access, from a pager that listens in `work_dir`.
            on_restored: called with the pid when everything is restored and nothing runs yet.

        Raises:
            CriuError: CRIU failed; its log says why.
        """
        options = restore_options(
            root,
            external=external,
            network_fd=network_fd,
            lazy_pages=lazy_pages,
            notify=on_restored is not None,
        )
        reply = self._call(_RESTORE, images, work_dir, options, on_restored or _ignore_pid)
        if not reply.get(2, [0])[0]:
            raise CriuError("restore", work_dir / "restore.log")
        (answer,) = reply[4]
        assert isinstance(answer, bytes)
        return int(parse_message(answer)[1][0])

    @property
    def alive(self) -> bool:
        """True while CRIU runs.

        CRIU sends nothing before a request, so readable input means that it has ended.
        """
        return not poll_readable(self._sock)

    def close(self) -> None:
        self._sock.close()
        self._on_close()

    def _call(
        self,
        kind: int,
        images: Path,
        work_dir: Path,
        options: bytes,
        on_point: Callable[[int], None],
    ) -> dict[int, list[int | bytes]]:
        self._wait_started()
        images_fd = os.open(images, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        work_fd = os.open(work_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        log = "dump.log" if kind == _DUMP else "restore.log"
        body = common_options(images_fd, work_fd, log) + options
        try:
            self._send(encode_field(1, kind) + encode_field(2, body))
            return self._wait_reply(on_point)
        finally:
            os.close(images_fd)
            os.close(work_fd)
            self.close()

    def _wait_reply(self, on_point: Callable[[int], None]) -> dict[int, list[int | bytes]]:
        """Return the reply. Before it, CRIU sends notifications and waits for an answer to each."""
        pid = 0
        while True:
            reply = parse_message(self._receive())
            if reply[1][0] != _NOTIFY:
                return reply
            (notification,) = reply[5]
            assert isinstance(notification, bytes)
            fields = parse_message(notification)
            pid = int(fields.get(2, [pid])[0])  # not every message has it
            good = False
            try:
                if fields[1][0] in _NOTIFY_POINTS:
                    on_point(pid)
                good = True
            finally:
                with suppress(OSError):
                    self._send(encode_field(1, _NOTIFY) + encode_field(3, int(good)))

    def _send(self, data: bytes) -> None:
        try:
            self._sock.send(data)
        except OSError as error:
            raise criu_died() from error

    def _receive(self) -> bytes:
        try:
            data = self._sock.recv(_MAX_MESSAGE_BYTES)
        except OSError as error:
            raise criu_died() from error
        if not data:
            raise criu_died()
        return data


def log_errors(log: Path) -> list[str]:
    """Return the error messages of a CRIU log, without source positions."""
    errors = []
    with suppress(OSError):
        for line in log.read_text(errors="replace").splitlines():
            _, mark, rest = line.partition("Error (")
            if mark and _IGNORED_ERROR not in rest:
                errors.append(rest.partition("): ")[2].strip())
    return errors


def _ignore_pid(pid: int) -> None:
    del pid


def criu_died() -> Unavailable:
    """Return the error for a CRIU process that ended too early."""
    return Unavailable("criu_died", "CRIU was killed while it worked: nothing changed, try again")

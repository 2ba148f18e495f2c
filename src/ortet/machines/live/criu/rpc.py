"""The RPC protocol of CRIU: requests and replies as hand-written protocol buffers.

Only the messages that Ortet uses are here. The field numbers are those of CRIU's rpc.proto.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ortet.errors import Unavailable
from ortet.machines.poll import poll_readable

_DUMP, _RESTORE, _NOTIFY = 1, 2, 6
_OPTION_FIELDS = {
    "images_dir_fd": 1,
    "pid": 2,
    "leave_running": 3,
    "tcp_established": 5,
    "shell_job": 7,
    "file_locks": 8,
    "log_level": 9,
    "log_file": 10,
    "notify_scripts": 12,
    "root": 13,
    "work_dir_fd": 17,
    "link_remap": 18,
    "force_irmap": 21,
    "rst_sibling": 26,
    "inherit_fd": 27,
    "manage_cgroups_mode": 34,
    "ghost_limit": 35,
    "irmap_scan_paths": 36,
    "external": 37,
    "lazy_pages": 48,
    "network_lock": 64,
}
_NETWORK_LOCK_SKIP = 3  # value of network_lock: no other machine uses this network
# size limit for a deleted file that is still open and stored in the image
_MAX_GHOST_FILE_BYTES = 1 << 30
_MAX_MESSAGE_BYTES = 1 << 20
_NOTIFY_POINTS = (b"post-dump", b"pre-resume")  # processes are stopped and complete
_IGNORED_ERROR = "rlimit: Can't setup RLIMIT_NOFILE"  # CRIU works without it

OptionValue = int | str | bytes


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
        options: dict[str, OptionValue] = {
            "pid": pid,
            "leave_running": int(leave_running),
            "notify_scripts": 1,
        }
        if watched:
            options["force_irmap"] = 1
        body = _encode_options(options, external, watched)
        said = self._call(_DUMP, images, images, body, lambda _: on_frozen())
        if not said.get(2, [0])[0]:
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
        inherit = _encode_field(1, "extnet") + _encode_field(2, network_fd)
        options: dict[str, OptionValue] = {
            "root": str(root),
            "rst_sibling": 1,
            "inherit_fd": inherit,
        }
        if lazy_pages:
            options["lazy_pages"] = 1
        if on_restored is not None:
            options["notify_scripts"] = 1
        said = self._call(
            _RESTORE,
            images,
            work_dir,
            _encode_options(options, external),
            on_restored or _ignore_pid,
        )
        if not said.get(2, [0])[0]:
            raise CriuError("restore", work_dir / "restore.log")
        (answer,) = said[4]
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
        told = {"images_dir_fd": images_fd, "work_dir_fd": work_fd}
        log = "dump.log" if kind == _DUMP else "restore.log"
        body = _encode_options({**told, "log_file": log}) + _COMMON_OPTIONS + options
        try:
            self._send(_encode_field(1, kind) + _encode_field(2, body))
            return self._wait_reply(on_point)
        finally:
            os.close(images_fd)
            os.close(work_fd)
            self.close()

    def _wait_reply(self, on_point: Callable[[int], None]) -> dict[int, list[int | bytes]]:
        """Return the reply. Before it, CRIU sends notifications and waits for an answer to each."""
        pid = 0
        while True:
            said = parse_message(self._receive())
            if said[1][0] != _NOTIFY:
                return said
            (told,) = said[5]
            assert isinstance(told, bytes)
            fields = parse_message(told)
            pid = int(fields.get(2, [pid])[0])  # not every message has it
            good = False
            try:
                if fields[1][0] in _NOTIFY_POINTS:
                    on_point(pid)
                good = True
            finally:
                with suppress(OSError):
                    self._send(_encode_field(1, _NOTIFY) + _encode_field(3, int(good)))

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
    found = []
    with suppress(OSError):
        for line in log.read_text(errors="replace").splitlines():
            _, mark, rest = line.partition("Error (")
            if mark and _IGNORED_ERROR not in rest:
                found.append(rest.partition("): ")[2].strip())
    return found


def image_entries(image: Path) -> Iterator[bytes]:
    """Yield the entries of a CRIU image file as raw bytes; nothing if the file does not exist."""
    with suppress(FileNotFoundError):
        data = image.read_bytes()
        at = 8  # after two magic numbers
        while at < len(data):
            (size,) = struct.unpack_from("<I", data, at)
            yield data[at + 4 : at + 4 + size]
            at += 4 + size


def _ignore_pid(pid: int) -> None:
    del pid


def criu_died() -> Unavailable:
    """Return the error for a CRIU process that ended too early."""
    return Unavailable("criu_died", "CRIU was killed while it worked: nothing changed, try again")


def _encode_options(
    options: Mapping[str, OptionValue], external: Sequence[str] = (), watched: Sequence[str] = ()
) -> bytes:
    given = [(_OPTION_FIELDS[name], value) for name, value in options.items()]
    given += [(_OPTION_FIELDS["external"], name) for name in external]
    given += [(_OPTION_FIELDS["irmap_scan_paths"], path) for path in watched]
    return b"".join(_encode_field(number, value) for number, value in given)


def _encode_field(number: int, value: OptionValue) -> bytes:
    if isinstance(value, int):
        return _encode_varint(number << 3) + _encode_varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _encode_varint(number << 3 | 2) + _encode_varint(len(data)) + data


def _encode_varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def parse_message(data: bytes) -> dict[int, list[int | bytes]]:
    """Parse a message: field number -> values. Only integers and bytes occur."""
    found: dict[int, list[int | bytes]] = {}
    for number, value in iter_fields(data):
        found.setdefault(number, []).append(value)
    return found


def iter_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of each field, in order."""
    at = 0
    while at < len(data):
        tag, at = _decode_varint(data, at)
        value, at = _decode_varint(data, at)
        if tag & 7:
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            yield tag >> 3, value


def encode_fields(fields: Iterable[tuple[int, int | bytes]]) -> bytes:
    """Encode fields; the inverse of `iter_fields`."""
    return b"".join(_encode_field(number, value) for number, value in fields)


def _decode_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return a varint, and the position after it."""
    number = shift = 0
    while True:
        number |= (data[offset] & 0x7F) << shift
        shift += 7
        offset += 1
        if data[offset - 1] < 0x80:
            return number, offset


_COMMON_OPTIONS = _encode_options(
    {
        "log_level": 2,
        "tcp_established": 1,
        "shell_job": 1,
        "file_locks": 1,
        "link_remap": 1,
        "manage_cgroups_mode": 0,
        "ghost_limit": _MAX_GHOST_FILE_BYTES,
        "network_lock": _NETWORK_LOCK_SKIP,
    }
)

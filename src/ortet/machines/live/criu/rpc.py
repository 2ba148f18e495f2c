"""Talks to CRIU: requests and replies of its RPC, which are protocol buffers, by hand.

Only what we say and hear is here; the field numbers are those of CRIU's rpc.proto.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ortet.errors import Unavailable
from ortet.machines.poll import readable

_DUMP, _RESTORE, _NOTIFY = 1, 2, 6
_FIELDS = {
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
_SKIP = 3  # network_lock: a machine's network has nobody else in it
_GHOSTS = 1 << 30  # bytes of a deleted file that is still open, kept in the image
_LARGEST = 1 << 20
_POINTS = (b"post-dump", b"pre-resume")  # where all stands still and is complete
_HARMLESS = "rlimit: Can't setup RLIMIT_NOFILE"  # it does without

Value = int | str | bytes


class Failed(Exception):
    """CRIU said no. `log` is where it says why."""

    def __init__(self, what: str, log: Path) -> None:
        super().__init__(what)
        self.log = log


class Worker:
    """One `criu swrk`: does one thing, then it is spent.

    `begun` waits until it runs; `ended` is called when it is closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        begun: Callable[[], None],
        ended: Callable[[], None],
        *,
        pid: int = 0,
    ) -> None:
        self.pid = pid
        """Its own, of one that restores."""
        self._sock = sock
        self._begun = begun
        self._ended = ended

    def dump(
        self,
        pid: int,
        images: Path,
        *,
        external: Sequence[str],
        frozen: Callable[[], None],
        watched: Sequence[str] = (),
        leave: bool = True,
    ) -> None:
        """Write the process tree of `pid` to a directory; `frozen` is called while it stands still.
        `watched` are directories in which files lie that processes watch: CRIU searches them.

        When it fails, the processes go on as if nothing had been.
        """
        options: dict[str, Value] = {"pid": pid, "leave_running": int(leave), "notify_scripts": 1}
        if watched:
            options["force_irmap"] = 1
        body = _encode(options, external, watched)
        said = self._call(_DUMP, images, images, body, lambda _: frozen())
        if not said.get(2, [0])[0]:
            raise Failed("dump", images / "dump.log")

    def restore(
        self,
        images: Path,
        work: Path,
        *,
        root: Path,
        external: Sequence[str],
        net: int,
        lazy: bool = False,
        restored: Callable[[int], None] | None = None,
    ) -> int:
        """Bring the process tree of a directory back below `root`; returns its pid. `lazy`: memory
        comes from a pager that listens in `work`, when it is first touched. `restored` is called
        with the pid when all is there, and nothing runs yet."""
        inherit = _field(1, "extnet") + _field(2, net)
        options: dict[str, Value] = {"root": str(root), "rst_sibling": 1, "inherit_fd": inherit}
        if lazy:
            options["lazy_pages"] = 1
        if restored is not None:
            options["notify_scripts"] = 1
        said = self._call(_RESTORE, images, work, _encode(options, external), restored or _nothing)
        if not said.get(2, [0])[0]:
            raise Failed("restore", work / "restore.log")
        (answer,) = said[4]
        assert isinstance(answer, bytes)
        return int(parse(answer)[1][0])

    @property
    def alive(self) -> bool:
        """It says nothing before it is asked: what can be read is its end."""
        return not readable(self._sock)

    def close(self) -> None:
        self._sock.close()
        self._ended()

    def _call(
        self,
        kind: int,
        images: Path,
        work: Path,
        options: bytes,
        reached: Callable[[int], None],
    ) -> dict[int, list[int | bytes]]:
        self._begun()
        images_fd = os.open(images, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        work_fd = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        told = {"images_dir_fd": images_fd, "work_dir_fd": work_fd}
        log = "dump.log" if kind == _DUMP else "restore.log"
        body = _encode({**told, "log_file": log}) + _COMMON + options
        try:
            self._send(_field(1, kind) + _field(2, body))
            return self._hear(reached)
        finally:
            os.close(images_fd)
            os.close(work_fd)
            self.close()

    def _hear(self, reached: Callable[[int], None]) -> dict[int, list[int | bytes]]:
        """The answer; on the way there it tells how far it is, and waits for leave to go on."""
        pid = 0
        while True:
            said = parse(self._receive())
            if said[1][0] != _NOTIFY:
                return said
            (told,) = said[5]
            assert isinstance(told, bytes)
            fields = parse(told)
            pid = int(fields.get(2, [pid])[0])  # which not every message has
            good = False
            try:
                if fields[1][0] in _POINTS:
                    reached(pid)
                good = True
            finally:
                with suppress(OSError):
                    self._send(_field(1, _NOTIFY) + _field(3, int(good)))

    def _send(self, data: bytes) -> None:
        try:
            self._sock.send(data)
        except OSError as error:
            raise gone() from error

    def _receive(self) -> bytes:
        try:
            data = self._sock.recv(_LARGEST)
        except OSError as error:
            raise gone() from error
        if not data:
            raise gone()
        return data


def messages(log: Path) -> list[str]:
    """What CRIU's log says went wrong, without the places in its source."""
    found = []
    with suppress(OSError):
        for line in log.read_text(errors="replace").splitlines():
            _, mark, rest = line.partition("Error (")
            if mark and _HARMLESS not in rest:
                found.append(rest.partition("): ")[2].strip())
    return found


def entries(image: Path) -> Iterator[bytes]:
    """What is in one of its files, each as it wrote it; nothing if it wrote no such file."""
    with suppress(FileNotFoundError):
        data = image.read_bytes()
        at = 8  # behind two magic numbers
        while at < len(data):
            (size,) = struct.unpack_from("<I", data, at)
            yield data[at + 4 : at + 4 + size]
            at += 4 + size


def _nothing(pid: int) -> None:
    del pid


def gone() -> Unavailable:
    """CRIU has ended before it was done."""
    return Unavailable("criu_died", "CRIU was killed while it worked: nothing changed, try again")


def _encode(
    options: Mapping[str, Value], external: Sequence[str] = (), watched: Sequence[str] = ()
) -> bytes:
    given = [(_FIELDS[name], value) for name, value in options.items()]
    given += [(_FIELDS["external"], name) for name in external]
    given += [(_FIELDS["irmap_scan_paths"], path) for path in watched]
    return b"".join(_field(number, value) for number, value in given)


def _field(number: int, value: Value) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def parse(data: bytes) -> dict[int, list[int | bytes]]:
    """Field number -> its values; only whole numbers and bytes are said to us."""
    found: dict[int, list[int | bytes]] = {}
    for number, value in fields_of(data):
        found.setdefault(number, []).append(value)
    return found


def fields_of(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field, in order."""
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        value, at = _number(data, at)
        if tag & 7:
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            yield tag >> 3, value


def join_fields(fields: Iterable[tuple[int, int | bytes]]) -> bytes:
    """The other way round."""
    return b"".join(_field(number, value) for number, value in fields)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A varint, and the position behind it."""
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return number, at


_COMMON = _encode(
    {
        "log_level": 2,
        "tcp_established": 1,
        "shell_job": 1,
        "file_locks": 1,
        "link_remap": 1,
        "manage_cgroups_mode": 0,
        "ghost_limit": _GHOSTS,
        "network_lock": _SKIP,
    }
)

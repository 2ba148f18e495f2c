"""Real pid 1s: in namespaces of their own, or as an ordinary process where that is enough."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from binascii import a2b_base64, b2a_base64
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.fixtures.waiting import WAIT

from ortet.machines.standalone import ipc
from ortet.machines.standalone.syscalls import is_privileged

PROGRAM = Path(ipc.__file__).with_name("init.py")
ENV = {"PATH": os.environ["PATH"], "HOME": "/", "PS1": "$ ", "TERM": "dumb"}

_ENTER = """
set -e
mount -t tmpfs none /run
mount --bind "$1" /etc
shift
exec "$@"
"""


class Init:
    """A started pid 1 and its socket; ends with the block."""

    def __init__(self, process: subprocess.Popen[bytes], pid: int, path: Path) -> None:
        self.pid = pid
        self.path = path
        self._process = process

    def __enter__(self) -> Init:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """With all it started: nothing else ends what an ordinary process leaves behind."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
        below, found = [self.pid], [self.pid]
        while below := [child for pid in below for child in _children(pid)]:
            found += below
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def line(self) -> Line:
        return Line(self.path)

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def connections(self) -> int:
        """Sockets it holds beside the one it listens on."""
        return sum(link.startswith("socket:") for link in self.held) - 1

    @property
    def held(self) -> list[str]:
        """What its descriptors are of; one that it closes meanwhile is none of them."""
        place, found = f"/proc/{self.pid}/fd", []
        for name in os.listdir(place):
            with suppress(FileNotFoundError):
                found.append(os.readlink(f"{place}/{name}"))
        return found

    @property
    def memory(self) -> int:
        """Resident bytes."""
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def children(self) -> list[int]:
        return _children(self.pid)


class Line:
    """One connection, spoken by hand."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(2 * WAIT)
        directory = os.open(path.parent, os.O_PATH)
        try:
            self.sock.connect(f"/proc/self/fd/{directory}/{path.name}")
        except BaseException:
            self.sock.close()
            raise
        finally:
            os.close(directory)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, do: str, **more: Any) -> None:
        ipc.send(self.sock, {"do": do, **more})

    def receive(self) -> dict[str, Any]:
        return ipc.receive(self.sock)[0]

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        self.send(do, **more)
        return self.receive()

    def start(self, *argv: str, kind: str = "service", **more: Any) -> dict[str, Any]:
        given = {"argv": argv, "env": ENV, "cwd": "/", "followed": kind == "run"}
        return self.ask("start", **{"kind": kind, **given, **more})

    def until(self, expected: bytes, stream: str = "stdout", **which: Any) -> bytes:
        """Read a stream from its beginning until it holds this."""
        text, cursor = b"", 0
        while expected not in text:
            piece = self.ask("read", stream=stream, cursor=cursor, wait=WAIT, **which)
            if not piece["data"]:
                wrong = a2b_base64(self.ask("read", stream="stderr", **which)["data"])
                raise AssertionError(f"only {text!r} came, and {wrong!r}: {piece}")
            text += a2b_base64(piece["data"])
            cursor = piece["cursor"]
        return text


def text(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


def ordinary(place: Path) -> Init:
    """Not pid 1, and no namespace."""
    path = place / "init" / "init.sock"
    process = _started([sys.executable, "-I", "-S", str(PROGRAM)], str(path))
    return Init(process, process.pid, path)


def pid_one(place: Path) -> Init:
    """Of pid, mount and uts namespaces of its own, with a /run and an /etc of its own."""
    etc = place / "etc"
    etc.mkdir()
    (etc / "machine-id").write_text("old\n")
    namespaces = ["unshare", "--mount", "--pid", "--uts", "--mount-proc", "--fork", "--kill-child"]
    if not is_privileged():
        namespaces.insert(1, "--map-root-user")
    enter = ["sh", "-c", _ENTER, "sh", str(etc), sys.executable, "-I", "-S", str(PROGRAM)]
    process = _started([*namespaces, *enter])
    (pid,) = _children(process.pid)
    return Init(process, pid, Path(f"/proc/{pid}/root/run/ortet/init.sock"))


def _started(argv: list[str], *more: str) -> subprocess.Popen[bytes]:
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            [*argv, str(writer), *more],
            pass_fds=[writer],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    finally:
        os.close(writer)
    with open(reader, "rb", buffering=0) as ready:
        assert ready.read(2) == b"\n"
        if argv[0] == sys.executable:  # else others hold it too
            assert ready.read(1) == b"", "it lets go of it"
    return process


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []

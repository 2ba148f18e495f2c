"""The client's end of the host agent: where it listens, what is sent to it, what comes back.

A command that the agent carries out is little more than this module: it imports next to nothing.
"""

from __future__ import annotations

import fcntl
import os
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET, socket
from collections.abc import Sequence

import ortet

PLACE = "local/agent"
SOCKET, LOCK = "sock", "lock"

BEGUN, ENDED, DECLINED = b"B", b"E", b"D"
"""First bytes of what the agent says: it begins; the exit code; why it does not."""

SWITCH = "ORTET_AGENT"
_PATIENCE = 10.0  # seconds until an agent that does not even begin is left alone
_LARGEST = 1 << 24
_GIVE_UP = 3  # interrupts after which nobody waits for the agent to obey


class NoAgent(Exception):
    """It is not there, or not for us: whoever asked does the work itself."""


class Lost(Exception):
    """It ended in the middle of the work."""


def identity() -> str:
    """Agents serve commands of the same installation only."""
    return f"{ortet.__version__} {os.path.dirname(ortet.__file__)}"


def here_in() -> str:
    """Paths mean the same only in the same mount namespace; "" where there are none."""
    try:
        return os.readlink("/proc/self/ns/mnt")
    except OSError:
        return ""


def frame(fields: Sequence[str]) -> bytes:
    """Fields without NUL, as arguments and variables are, behind their length."""
    body = b"\0".join(map(os.fsencode, fields))
    return len(body).to_bytes(4, "big") + body


def parse(body: bytes) -> list[str]:
    return [os.fsdecode(field) for field in body.split(b"\0")]


def read_exactly(sock: socket, size: int) -> bytes:
    """NoAgent when the other side hangs up first."""
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise NoAgent("it hung up")
        data += part
    return data


def read_frame(sock: socket) -> list[str]:
    size = int.from_bytes(read_exactly(sock, 4), "big")
    if size > _LARGEST:
        raise NoAgent("that is no message")
    return parse(read_exactly(sock, size))


def peer_is_me(sock: socket) -> bool:
    """Whether the process at the other end is the same user's."""
    found = sock.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)
    return int.from_bytes(found[4:8], sys.byteorder) == os.geteuid()


def connect(store: str) -> socket:
    """To the agent of a store; NoAgent where there is none of this user."""
    try:
        place = os.open(os.path.join(store, PLACE), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise NoAgent("none was ever started") from error
    sock = socket(AF_UNIX, SOCK_STREAM)
    try:
        seen = os.fstat(place)
        if seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
            raise NoAgent("its directory is open to others")
        sock.settimeout(_PATIENCE)
        sock.connect(f"/proc/self/fd/{place}/{SOCKET}")  # the path itself may be too long
        if not peer_is_me(sock):
            raise NoAgent("it is another user's")
    except OSError as error:
        sock.close()
        raise NoAgent(str(error)) from error
    except NoAgent:
        sock.close()
        raise
    finally:
        os.close(place)
    return sock


def hello(sock: socket, kind: str, key: str = "") -> None:
    """What the agent is asked for; `key` names the workspace that it is about."""
    sock.sendall(frame([kind, identity(), here_in(), key]))


def ask(store: str, kind: str, key: str = "") -> str:
    """A question to the agent itself; NoAgent where there is none."""
    sock = connect(store)
    try:
        hello(sock, kind, key)
        said = b""
        while part := sock.recv(1 << 16):
            said += part
    except OSError as error:
        raise NoAgent(str(error)) from error
    finally:
        sock.close()
    if said[:1] != ENDED:
        raise NoAgent(os.fsdecode(said[1:]) or "it did not answer")
    return os.fsdecode(said[1:])


def perform(
    store: str,
    key: str,
    words: Sequence[str],
    *,
    streams: tuple[int, int, int] = (0, 1, 2),
    variables: Sequence[str] = (),
    patience: float = _PATIENCE,
) -> int:
    """Have the agent do what these words of a command line say, with our directory, our variables
    and those given as NAME=VALUE, and `streams`, when it is our turn; returns the exit code.

    NoAgent: nothing was begun. Lost: something may have been.
    """
    sock = connect(store)
    try:
        try:
            hello(sock, "verb", key)
            _send_request(sock, words, streams, variables)
            sock.settimeout(patience)
            _begun(sock)
        except OSError as error:
            raise NoAgent(str(error)) from error
        sock.settimeout(None)
        return _ended(sock)
    finally:
        sock.close()


def _send_request(
    sock: socket, words: Sequence[str], streams: tuple[int, int, int], given_too: Sequence[str]
) -> None:
    variables = [*(f"{name}={value}" for name, value in os.environ.items()), *given_too]
    coding = getattr(sys.stdout, "encoding", "") or "utf-8"
    data = frame([os.getcwd(), coding, str(len(words)), *words, *variables])
    given = b"".join(fd.to_bytes(4, sys.byteorder) for fd in streams)
    sent = sock.sendmsg([data], [(SOL_SOCKET, SCM_RIGHTS, given)])
    if sent < len(data):
        sock.sendall(data[sent:])


def _begun(sock: socket) -> None:
    said = sock.recv(1)
    if said == BEGUN:
        return
    why = sock.recv(1 << 12) if said == DECLINED else b"it hung up"
    raise NoAgent(os.fsdecode(why))


def _ended(sock: socket) -> int:
    said, interrupts = b"", 0
    while not said.endswith(b"\n"):
        try:
            part = sock.recv(16)
        except KeyboardInterrupt:  # it is the agent's to stop
            interrupts += 1
            if interrupts == _GIVE_UP:
                raise
            _forward(sock)
            continue
        except OSError as error:
            raise Lost from error
        if not part:
            raise Lost
        said += part
    if not said.startswith(ENDED):
        raise Lost
    return int(said[1:])


def _forward(sock: socket) -> None:
    try:
        sock.sendall(b"I")
    except OSError:
        return  # then recv says how it ended


def is_starting(store: str) -> bool:
    """Whether an agent lives, though it may not listen yet."""
    try:
        fd = os.open(os.path.join(store, PLACE, LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def start(store: str) -> None:
    """Begin an agent, without waiting for it; one that finds another there ends at once."""
    if is_starting(store):
        return
    nowhere = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    argv = [sys.executable, "-P", "-m", "ortet.cli.daemon.server", store]  # not from where we are
    os.posix_spawn(sys.executable, argv, os.environ, file_actions=nowhere, setsid=True)

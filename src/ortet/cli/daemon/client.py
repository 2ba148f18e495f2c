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

DAEMON_DIRECTORY = "local/agent"
SOCKET_NAME, LOCK_NAME = "sock", "lock"

REPLY_BEGUN, REPLY_ENDED, REPLY_DECLINED = b"B", b"E", b"D"
"""First bytes of what the agent says: it begins; the exit code; why it does not."""

DAEMON_VARIABLE = "ORTET_AGENT"
_REPLY_TIMEOUT_SECONDS = 10.0  # seconds until an agent that does not even begin is left alone
_MAX_FRAME_BYTES = 1 << 24
_MAX_INTERRUPTS = 3  # interrupts after which nobody waits for the agent to obey


class NoDaemon(Exception):
    """It is not there, or not for us: whoever asked does the work itself."""


class DaemonLost(Exception):
    """It ended in the middle of the work."""


def installation_id() -> str:
    """Agents serve commands of the same installation only."""
    return f"{ortet.__version__} {os.path.dirname(ortet.__file__)}"


def mount_namespace() -> str:
    """Paths mean the same only in the same mount namespace; "" where there are none."""
    try:
        return os.readlink("/proc/self/ns/mnt")
    except OSError:
        return ""


def encode_frame(fields: Sequence[str]) -> bytes:
    """Fields without NUL, as arguments and variables are, behind their length."""
    body = b"\0".join(map(os.fsencode, fields))
    return len(body).to_bytes(4, "big") + body


def decode_frame(body: bytes) -> list[str]:
    return [os.fsdecode(field) for field in body.split(b"\0")]


def read_exactly(sock: socket, size: int) -> bytes:
    """NoAgent when the other side hangs up first."""
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise NoDaemon("it hung up")
        data += part
    return data


def read_frame(sock: socket) -> list[str]:
    size = int.from_bytes(read_exactly(sock, 4), "big")
    if size > _MAX_FRAME_BYTES:
        raise NoDaemon("that is no message")
    return decode_frame(read_exactly(sock, size))


def is_same_user(sock: socket) -> bool:
    """Whether the process at the other end is the same user's."""
    found = sock.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)
    return int.from_bytes(found[4:8], sys.byteorder) == os.geteuid()


def connect(store: str) -> socket:
    """To the agent of a store; NoAgent where there is none of this user."""
    try:
        place = os.open(
            os.path.join(store, DAEMON_DIRECTORY), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        )
    except OSError as error:
        raise NoDaemon("none was ever started") from error
    sock = socket(AF_UNIX, SOCK_STREAM)
    try:
        seen = os.fstat(place)
        if seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
            raise NoDaemon("its directory is open to others")
        sock.settimeout(_REPLY_TIMEOUT_SECONDS)
        sock.connect(f"/proc/self/fd/{place}/{SOCKET_NAME}")  # the path itself may be too long
        if not is_same_user(sock):
            raise NoDaemon("it is another user's")
    except OSError as error:
        sock.close()
        raise NoDaemon(str(error)) from error
    except NoDaemon:
        sock.close()
        raise
    finally:
        os.close(place)
    return sock


def send_hello(sock: socket, kind: str, key: str = "") -> None:
    """What the agent is asked for; `key` names the workspace that it is about."""
    sock.sendall(encode_frame([kind, installation_id(), mount_namespace(), key]))


def query(store: str, kind: str, key: str = "") -> str:
    """A question to the agent itself; NoAgent where there is none."""
    sock = connect(store)
    try:
        send_hello(sock, kind, key)
        said = b""
        while part := sock.recv(1 << 16):
            said += part
    except OSError as error:
        raise NoDaemon(str(error)) from error
    finally:
        sock.close()
    if said[:1] != REPLY_ENDED:
        raise NoDaemon(os.fsdecode(said[1:]) or "it did not answer")
    return os.fsdecode(said[1:])


def run_command(
    store: str,
    key: str,
    words: Sequence[str],
    *,
    streams: tuple[int, int, int] = (0, 1, 2),
    variables: Sequence[str] = (),
    timeout: float = _REPLY_TIMEOUT_SECONDS,
) -> int:
    """Have the agent do what these words of a command line say, with our directory, our variables
    and those given as NAME=VALUE, and `streams`, when it is our turn; returns the exit code.

    NoAgent: nothing was begun. Lost: something may have been.
    """
    sock = connect(store)
    try:
        try:
            send_hello(sock, "verb", key)
            _send_request(sock, words, streams, variables)
            sock.settimeout(timeout)
            _await_begin(sock)
        except OSError as error:
            raise NoDaemon(str(error)) from error
        sock.settimeout(None)
        return _await_exit_code(sock)
    finally:
        sock.close()


def _send_request(
    sock: socket,
    words: Sequence[str],
    streams: tuple[int, int, int],
    extra_variables: Sequence[str],
) -> None:
    variables = [*(f"{name}={value}" for name, value in os.environ.items()), *extra_variables]
    coding = getattr(sys.stdout, "encoding", "") or "utf-8"
    data = encode_frame([os.getcwd(), coding, str(len(words)), *words, *variables])
    given = b"".join(fd.to_bytes(4, sys.byteorder) for fd in streams)
    sent = sock.sendmsg([data], [(SOL_SOCKET, SCM_RIGHTS, given)])
    if sent < len(data):
        sock.sendall(data[sent:])


def _await_begin(sock: socket) -> None:
    said = sock.recv(1)
    if said == REPLY_BEGUN:
        return
    why = sock.recv(1 << 12) if said == REPLY_DECLINED else b"it hung up"
    raise NoDaemon(os.fsdecode(why))


def _await_exit_code(sock: socket) -> int:
    said, interrupts = b"", 0
    while not said.endswith(b"\n"):
        try:
            part = sock.recv(16)
        except KeyboardInterrupt:  # it is the agent's to stop
            interrupts += 1
            if interrupts == _MAX_INTERRUPTS:
                raise
            _forward_interrupt(sock)
            continue
        except OSError as error:
            raise DaemonLost from error
        if not part:
            raise DaemonLost
        said += part
    if not said.startswith(REPLY_ENDED):
        raise DaemonLost
    return int(said[1:])


def _forward_interrupt(sock: socket) -> None:
    try:
        sock.sendall(b"I")
    except OSError:
        return  # then recv says how it ended


def is_alive(store: str) -> bool:
    """Whether an agent lives, though it may not listen yet."""
    try:
        fd = os.open(os.path.join(store, DAEMON_DIRECTORY, LOCK_NAME), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def spawn_daemon(store: str) -> None:
    """Begin an agent, without waiting for it; one that finds another there ends at once."""
    if is_alive(store):
        return
    nowhere = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    argv = [sys.executable, "-P", "-m", "ortet.cli.daemon.server", store]  # not from where we are
    os.posix_spawn(sys.executable, argv, os.environ, file_actions=nowhere, setsid=True)

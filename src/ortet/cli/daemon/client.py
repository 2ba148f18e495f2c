"""The client side of the host agent, and its protocol.

A command that the agent runs needs little more than this module, which imports almost nothing.
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
"""The first byte of a reply: begun; ended, with the exit code; declined, with the reason."""

DAEMON_VARIABLE = "ORTET_AGENT"
_REPLY_TIMEOUT_SECONDS = 10.0  # how long to wait until the agent begins
_MAX_FRAME_BYTES = 1 << 24
_MAX_INTERRUPTS = 3  # after so many interrupts, stop waiting for the agent


class NoDaemon(Exception):
    """There is no agent, or it cannot serve us.

    Nothing was begun: the caller runs the command itself.
    """


class DaemonLost(Exception):
    """The agent ended while it ran the command."""


def installation_id() -> str:
    """Return the id of this installation.

    An agent serves only commands of the same installation.
    """
    return f"{ortet.__version__} {os.path.dirname(ortet.__file__)}"


def mount_namespace() -> str:
    """Return the mount namespace, or "" if there are none. Paths are equal only within one."""
    try:
        return os.readlink("/proc/self/ns/mnt")
    except OSError:
        return ""


def encode_frame(fields: Sequence[str]) -> bytes:
    """Encode fields with a length prefix. Fields contain no NUL, like arguments and variables."""
    body = b"\0".join(map(os.fsencode, fields))
    return len(body).to_bytes(4, "big") + body


def decode_frame(body: bytes) -> list[str]:
    """Decode the fields of a frame."""
    return [os.fsdecode(field) for field in body.split(b"\0")]


def read_exactly(sock: socket, size: int) -> bytes:
    """Read `size` bytes. Raises NoDaemon if the other side closes the connection."""
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise NoDaemon("it hung up")
        data += part
    return data


def read_frame(sock: socket) -> list[str]:
    """Read a frame and return its fields. Raises NoDaemon if it is too large."""
    size = int.from_bytes(read_exactly(sock, 4), "big")
    if size > _MAX_FRAME_BYTES:
        raise NoDaemon("that is no message")
    return decode_frame(read_exactly(sock, size))


def is_same_user(sock: socket) -> bool:
    """Return True if the peer process belongs to the same user."""
    credentials = sock.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder) == os.geteuid()


def connect(store: str) -> socket:
    """Connect to the agent of a store. Raises NoDaemon if this user has none."""
    try:
        directory = os.open(
            os.path.join(store, DAEMON_DIRECTORY), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        )
    except OSError as error:
        raise NoDaemon("none was ever started") from error
    sock = socket(AF_UNIX, SOCK_STREAM)
    try:
        stat = os.fstat(directory)
        if stat.st_uid != os.geteuid() or stat.st_mode & 0o077:
            raise NoDaemon("its directory is open to others")
        sock.settimeout(_REPLY_TIMEOUT_SECONDS)
        # The real path may be too long for a socket.
        sock.connect(f"/proc/self/fd/{directory}/{SOCKET_NAME}")
        if not is_same_user(sock):
            raise NoDaemon("it is another user's")
    except OSError as error:
        sock.close()
        raise NoDaemon(str(error)) from error
    except NoDaemon:
        sock.close()
        raise
    finally:
        os.close(directory)
    return sock


def send_hello(sock: socket, kind: str, key: str = "") -> None:
    """Send the kind of request. `key` names the workspace that it is about."""
    sock.sendall(encode_frame([kind, installation_id(), mount_namespace(), key]))


def query(store: str, kind: str, key: str = "") -> str:
    """Ask the agent itself, not a worker. Raises NoDaemon if there is none."""
    sock = connect(store)
    try:
        send_hello(sock, kind, key)
        reply = b""
        while part := sock.recv(1 << 16):
            reply += part
    except OSError as error:
        raise NoDaemon(str(error)) from error
    finally:
        sock.close()
    if reply[:1] != REPLY_ENDED:
        raise NoDaemon(os.fsdecode(reply[1:]) or "it did not answer")
    return os.fsdecode(reply[1:])


def run_command(
    store: str,
    key: str,
    words: Sequence[str],
    *,
    streams: tuple[int, int, int] = (0, 1, 2),
    variables: Sequence[str] = (),
    timeout: float = _REPLY_TIMEOUT_SECONDS,
) -> int:
    """Run a command line in the agent and return its exit code.

    The command gets our directory, our variables plus `variables` (NAME=VALUE), and `streams`. It
    waits for earlier commands about the same workspace.

    Raises:
        NoDaemon: Nothing was begun.
        DaemonLost: The command may have been carried out, or not.
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
    descriptors = b"".join(fd.to_bytes(4, sys.byteorder) for fd in streams)
    sent = sock.sendmsg([data], [(SOL_SOCKET, SCM_RIGHTS, descriptors)])
    if sent < len(data):
        sock.sendall(data[sent:])


def _await_begin(sock: socket) -> None:
    reply = sock.recv(1)
    if reply == REPLY_BEGUN:
        return
    why = sock.recv(1 << 12) if reply == REPLY_DECLINED else b"it hung up"
    raise NoDaemon(os.fsdecode(why))


def _await_exit_code(sock: socket) -> int:
    reply, interrupts = b"", 0
    while not reply.endswith(b"\n"):
        try:
            part = sock.recv(16)
        except KeyboardInterrupt:  # the agent must stop the command
            interrupts += 1
            if interrupts == _MAX_INTERRUPTS:
                raise
            _forward_interrupt(sock)
            continue
        except OSError as error:
            raise DaemonLost from error
        if not part:
            raise DaemonLost
        reply += part
    if not reply.startswith(REPLY_ENDED):
        raise DaemonLost
    return int(reply[1:])


def _forward_interrupt(sock: socket) -> None:
    try:
        sock.sendall(b"I")
    except OSError:
        return  # recv then shows how it ended


def is_alive(store: str) -> bool:
    """Return True if an agent process exists. It may not listen yet."""
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
    """Start an agent without waiting for it. A second agent of the same store exits at once."""
    if is_alive(store):
        return
    nowhere = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    # -P: do not import from the current directory.
    argv = [sys.executable, "-P", "-m", "ortet.cli.daemon.server", store]
    os.posix_spawn(sys.executable, argv, os.environ, file_actions=nowhere, setsid=True)

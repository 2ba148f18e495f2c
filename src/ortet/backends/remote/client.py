"""HTTP calls to a server, with pooled connections and retry of broken ones."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO, NamedTuple
from urllib.parse import urlsplit

from ortet.backends.remote.protocol import CONTENT_TYPE, RETRY_HEADER, parse_error
from ortet.errors import Invalid, Refused, Unavailable

if TYPE_CHECKING:
    import ssl

_MAX_IDLE_CONNECTIONS = 8
"""The maximum number of idle connections that are kept."""
_PIECE = 1 << 20
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.05, 1.0
"""The pause between attempts. It doubles each time."""
_GATEWAY = (502, 504)
"""Statuses of a proxy that could not reach the server."""
_BUSY = (429, 503)

Body = bytes | BinaryIO


class RemoteResponse(NamedTuple):
    """An HTTP answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _ConnectionBroken(Exception):
    """The connection broke or could not be made. It is unknown if the call was executed."""

    def __init__(self, why: str, *, is_unreached: bool = False) -> None:
        super().__init__(why)
        self.is_unreached = is_unreached


class RemoteClient:
    """Calls one server. Safe for threads; a forked child opens its own connections.

    A call whose connection breaks is retried for `retry_seconds`, with a header that marks the
    retry. The server knows which calls it has executed. If no connection was ever made, the call
    fails at once, because the address may be wrong. `timeout` is how long the server may send
    nothing.
    """

    def __init__(
        self, url: str, *, token: str = "", retry_seconds: float = 20.0, timeout: float = 60.0
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Invalid("bad_url", f"{url!r} names no server: write http://HOST:PORT")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (443 if self._secure else 80)
        self._base = parts.path.rstrip("/")
        self._common_headers = f"Host: {parts.netloc.rpartition('@')[2]}\r\n"
        if token:
            self._common_headers += f"Authorization: Bearer {_check_token(token)}\r\n"
        self._retry_seconds = retry_seconds
        self._timeout = timeout
        self._tls: ssl.SSLContext | None = None
        self._has_connected = False
        self._reset_connections()

    def __repr__(self) -> str:
        return f"<Link {self.url}>"

    def _reset_connections(self) -> None:
        self._pid = os.getpid()
        self._lock = Lock()
        self._idle: list[socket.socket] = []

    def call(
        self,
        verb: str,
        path: str,
        body: Body = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> RemoteResponse:
        """Return the answer, or raise the error that the server sent."""
        if self._pid != os.getpid():
            self._reset_connections()  # connections and lock belong to the parent process
        deadline = time.monotonic() + self._retry_seconds
        wait, again = _FIRST_PAUSE_SECONDS, False
        while True:
            try:
                answer = self._call_once(
                    verb, path, body, headers or {}, timeout or self._timeout, is_retry=again
                )
            except _ConnectionBroken as error:
                if time.monotonic() > deadline or (error.is_unreached and not self._has_connected):
                    raise self._no_server(str(error)) from error
                again = True
            else:
                wait = _retry_after_seconds(answer) or wait
                if not _retry_after_seconds(answer) or time.monotonic() + wait > deadline:
                    return self._raise_for_status(answer)
            time.sleep(wait)
            wait = min(wait * 2, _MAX_PAUSE_SECONDS)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __del__(self) -> None:
        for connection in getattr(self, "_idle", ()):  # not set if the constructor failed
            connection.close()

    def _call_once(
        self,
        verb: str,
        path: str,
        body: Body,
        headers: Mapping[str, str],
        timeout: float,
        *,
        is_retry: bool,
    ) -> RemoteResponse:
        size = len(body) if isinstance(body, bytes) else _size(body)
        head = (
            f"{verb} {self._base}{path} HTTP/1.1\r\n{self._common_headers}Content-Type: "
            f"{CONTENT_TYPE}\r\n"
        )
        head += f"Content-Length: {size}\r\n{RETRY_HEADER}: {int(is_retry)}\r\n"
        head += "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        connection: socket.socket | None = None
        early: OSError | None = None
        try:
            connection = self._connection()
            connection.settimeout(timeout)
            try:
                _send(connection, head.encode("latin-1") + b"\r\n", body)
            except OSError as error:
                early = error  # the server may have sent a reason before it closed the connection
            response = HTTPResponse(connection, method=verb)
            response.begin()
            answer = RemoteResponse(response.status, _lower(response), response.read())
        except (OSError, HTTPException, ValueError) as error:
            if connection is not None:
                connection.close()
            refused = connection is None
            raise _ConnectionBroken(
                _describe_error(early or error), is_unreached=refused
            ) from error
        except BaseException:
            if connection is not None:  # the connection is in the middle of a call
                connection.close()
            raise
        self._has_connected = True
        if answer.status in _GATEWAY and parse_error(answer.body) is None:
            connection.close()
            raise _ConnectionBroken(f"a proxy answered {answer.status}")
        if early is not None or response.will_close:
            connection.close()
        else:
            self._return_connection(connection)
        return answer

    def _connection(self) -> socket.socket:
        while True:
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            if idle is None:
                return self._connect()
            if not _is_readable(idle):
                return idle
            idle.close()  # the server closed it while it was idle

    def _connect(self) -> socket.socket:
        connection = socket.create_connection((self._host, self._port), self._timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return self._wrapped(connection) if self._secure else connection
        except BaseException:
            connection.close()
            raise

    def _wrapped(self, plain: socket.socket) -> socket.socket:
        import ssl  # noqa: PLC0415 - a command that does not need it starts faster

        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls.wrap_socket(plain, server_hostname=self._host)

    def _return_connection(self, connection: socket.socket) -> None:
        with self._lock:
            if len(self._idle) < _MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def _raise_for_status(self, answer: RemoteResponse) -> RemoteResponse:
        if answer.status < 300:
            return answer
        error = parse_error(answer.body, answer.status)
        if error is None:
            raise Unavailable(
                "bad_answer",
                f"{self.url} answered {answer.status}, and not as an ortet server does: check the "
                "address",
            )
        raise error

    def _no_server(self, why: str) -> Unavailable:
        return Unavailable(
            "no_server",
            f"the server at {self.url} does not answer ({why}): check the address, and that "
            "`ortet serve` runs there; then repeat the call",
        )


def _check_token(token: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Refused(
            "bad_token", "the token holds what no token has: copy it again, as one line, unchanged"
        )
    return token


def _send(connection: socket.socket, head: bytes, body: Body) -> None:
    if isinstance(body, bytes):
        if len(body) < _PIECE:
            connection.sendall(head + body)  # one packet, if it fits
            return
        connection.sendall(head)
        connection.sendall(body)
        return
    body.seek(0)
    connection.sendall(head)
    while piece := body.read(_PIECE):
        connection.sendall(piece)


def _size(body: BinaryIO) -> int:
    return os.fstat(body.fileno()).st_size


def _lower(response: HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _retry_after_seconds(answer: RemoteResponse) -> float:
    """Return the seconds to wait before a retry if the server was too busy; 0 otherwise.

    A busy server has not executed the call.
    """
    if answer.status in _BUSY:
        with suppress(ValueError, KeyError):
            return max(float(answer.headers["retry-after"]), _FIRST_PAUSE_SECONDS)
    return 0.0


def _is_readable(connection: socket.socket) -> bool:
    """Return True if an idle connection is readable, which means that the server closed it."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _describe_error(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it was silent for too long"
    return str(error) or type(error).__name__

"""Runs the application with uvicorn.

The port is bound before the server reports that it has started. SIGINT and SIGTERM stop the server
gracefully.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ortet.config.settings import ServeSettings
from ortet.errors import Unavailable
from ortet.server.observability.logs import log_to_stderr

_log = logging.getLogger(__name__)

_MAX_PIPELINED_REQUESTS = 16
"""Maximum number of requests that a client may send before the answer to the first."""


def make_limited_protocol(settings: ServeSettings) -> type[HttpToolsProtocol]:
    """Return a protocol class with these settings, for `uvicorn.Config(http=...)`."""
    return type("Limited", (_LimitedHttpProtocol,), {"limits": settings})


class _LimitedHttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits that uvicorn lacks.

    It limits the time and the size of a request head, the number of pipelined requests, and the
    number of connections.
    """

    limits: ServeSettings
    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0  # size of the head that is being read
    _is_reading_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._refuse(503, "too many connections")
            return
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_reading_head:  # the chunk with its first byte does not count
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._is_reading_head:
            return
        if self._head_bytes > self.limits.headers << 10:
            self._refuse(431, "the head of the request is too large")
        elif self._timer is None:  # most heads arrive complete and need no timer
            self._start_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_reading_head, self._head_bytes = True, 0
        self._cancel_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_reading_head:  # trailer fields after a chunked body
            self._head_bytes += len(name) + len(value)
            if self._head_bytes > self.limits.headers << 10:
                raise ValueError("too much behind the body")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._cancel_timer()
        self._is_reading_head, self._head_bytes = False, 0
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if self.transport.is_closing():
            return
        if size > self.limits.headers << 10:
            self._refuse(431, "the head of the request is too large")
        elif len(self.pipeline) >= _MAX_PIPELINED_REQUESTS:
            self.transport.abort()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.transport.is_closing():
            super().on_message_complete()

    def _start_timer(self) -> None:
        self._cancel_timer()
        self._timer = self.loop.call_later(self.limits.header_seconds, self._on_head_timeout)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_head_timeout(self) -> None:
        busy = self.cycle is not None and not self.cycle.response_complete
        if not self._is_reading_head:  # the client never sent a request
            self.transport.close()
        elif not busy:
            self._refuse(408, "the head of the request did not come in time")
        else:  # a pipelined request: an error would be read as the answer to the one before it
            self.transport.abort()

    def _refuse(self, status: int, why: str) -> None:
        """Send an error in the common JSON shape and close the connection."""
        if self.transport.is_closing():
            return
        kinds = {408: "too_slow", 431: "too_large", 503: "too_busy"}
        names = {408: "invalid", 431: "invalid", 503: "unavailable"}
        body = (
            f'{{"error":"{names[status]}","kind":"{kinds[status]}",'
            f'"message":"{why}: ask again, with less at once","details":{{}}}}'
        ).encode()
        head = (
            f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


SEND_TIMEOUT_SECONDS = 60
"""Time limit for a client to acknowledge sent data; its connection ends after that."""
_MAX_OPEN_FILES = 65_536
"""Limit of open files. A connection needs one descriptor, an open session several."""


def bind(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket. Raises Unavailable(`port_taken`) if the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Name the protocol: asyncio disables Nagle's algorithm only if the socket's protocol is
    # IPPROTO_TCP.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # accepted connections inherit the option
            bound.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SEND_TIMEOUT_SECONDS * 1000
            )
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise Unavailable(
            "port_taken", f"cannot listen on {host}:{port} ({error}): give another --port"
        ) from error
    return bound


def serve(
    app: Starlette,
    listener: socket.socket,
    on_started: Callable[[], None],
    *,
    settings: ServeSettings,
    trusted_proxies: Sequence[str] = (),
) -> None:
    """Serve `app` until SIGINT or SIGTERM; a second signal ends the process at once.

    Args:
        app: The application of `make_app`.
        listener: A bound socket, see `bind`.
        on_started: Called when the server accepts connections.
        settings: Limits and timeouts.
        trusted_proxies: Addresses of proxies whose X-Forwarded-* headers are trusted.
    """
    _raise_file_limit()
    with log_to_stderr(debug=settings.debug):
        config = uvicorn.Config(
            app.state.entry,
            http=make_limited_protocol(settings),
            ws="websockets-sansio",
            ws_max_size=settings.frame << 20,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(trusted_proxies),
            forwarded_allow_ips=list(trusted_proxies),
            timeout_graceful_shutdown=max(1, round(settings.grace)),
            timeout_keep_alive=max(1, round(settings.idle_seconds)),
        )
        server = _UvicornServer(config, on_started, lambda: _stop_streams(app))
        server.run(sockets=[listener])
        _log.info("stopped")
    if app.state.desk.threads.working or app.state.health.looking:
        # A call may still run for an hour. Its locks are free when the process has ended.
        os._exit(0)


def _stop_streams(app: Starlette) -> None:
    app.state.health.stopping = True
    app.state.streams.stop()  # open streams do not end without this


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _UvicornServer(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        on_started: Callable[[], None],
        on_stopping: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._on_stopping = on_stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stopping()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the signals without raising them again at the end, unlike uvicorn.

        A server that stopped on request did not fail, so its exit code is 0.
        """
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del frame
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True


_SIGNALS = (signal.SIGINT, signal.SIGTERM)

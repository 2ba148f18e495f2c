"""Runs the application with uvicorn.

The port is bound before the server reports that it has started. SIGINT and SIGTERM stop the server
gracefully.
"""

from __future__ import annotations

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

from ortet.config.settings import ServeSettings
from ortet.errors import Unavailable
from ortet.server.observability.logs import ServerLogHandler
from ortet.server.protocol import make_limited_protocol

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
    log = app.state.desk.log
    with _redirect_logging(ServerLogHandler(log)):
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
    log.say("info", "stopped")
    log.close()
    if app.state.desk.threads.working or app.state.health.looking:
        # A call may still run for an hour. Its locks are free when the process has ended.
        os._exit(0)


def _stop_streams(app: Starlette) -> None:
    app.state.health.stopping = True
    app.state.streams.stop()  # open streams do not end without this


@contextmanager
def _redirect_logging(handler: logging.Handler) -> Iterator[None]:
    """Redirect the logs of uvicorn, asyncio and websockets to `handler`."""
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio", "websockets")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = True


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
        before = {one: signal.signal(one, self.handle_exit) for one in _SIGNALS}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del frame
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True


_SIGNALS = (signal.SIGINT, signal.SIGTERM)

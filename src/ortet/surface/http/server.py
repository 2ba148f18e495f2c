"""uvicorn with our application: bound before it is said, and stopped with grace."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette

from ortet.errors import Unavailable

GRACE = 10
"""Seconds that requests have to end by themselves."""
DEAF = 60
"""Seconds in which a client must have taken what it was sent, else its connection ends."""


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections have it from their listener
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAF * 1000)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise Unavailable(
            "port_taken", f"cannot listen on {host}:{port} ({error}): give another --port"
        ) from error
    return bound


def serve(app: Starlette, bound: socket.socket, started: Callable[[], None]) -> None:
    """Until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="websockets-sansio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        timeout_keep_alive=75,
        h11_max_incomplete_event_size=64 << 10,
    )
    server = _Server(config, started, app.state.streams.stop)
    server.run(sockets=[bound])


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, started: Callable[[], None], stopping: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._told = started
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._told()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping()  # streams do not end by themselves
        await super().shutdown(sockets)

"""A server with nothing but the raw routes, in a thread or a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request

import ortet
from ortet.errors import Refused
from ortet.ids import Clock
from ortet.session.hub import Hub
from ortet.surface.http.raw import raw_routes

WAIT = 60.0


def make_app(hub: Hub, token: str = "") -> Starlette:
    def access(request: Request, scope: str) -> Hub:
        del scope
        if token and request.headers.get("authorization") != f"Bearer {token}":
            raise Refused("no_token", "give a token: set ORTET_TOKEN")
        return hub

    return Starlette(routes=raw_routes(access))


@contextmanager
def serving(store: Path, *, clock: Clock | None = None, token: str = "") -> Iterator[str]:
    """A server in a thread of this process; gives its address."""
    from ortet.config import open_hub

    with open_hub(store, clock=clock) as hub, listening() as listener:
        config = uvicorn.Config(make_app(hub, token), log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            server.force_exit = True
            thread.join(WAIT)


@contextmanager
def listening(port: int = 0) -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        yield listener


class Process:
    """A server in a process, which can be killed and started again at the same port."""

    def __init__(self, store: Path, *, token: str = "", environ: dict[str, str] | None = None):
        self._store = store
        self._token = token
        self._environ = environ or {}
        self.port = 0
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with listening(self.port) as listener:
            self.port = listener.getsockname()[1]
            os.set_inheritable(listener.fileno(), True)
            argv = [sys.executable, "-m", "tests.remote_server", str(self._store)]
            self._running = subprocess.Popen(
                [*argv, str(listener.fileno()), self._token],
                pass_fds=[listener.fileno()],
                env={**os.environ, **self._environ},
                stdin=subprocess.DEVNULL,
            )

    def kill(self) -> None:
        assert self._running is not None
        self._running.kill()
        self._running.wait(WAIT)
        self._running = None

    def close(self) -> None:
        if self._running is not None:
            self.kill()


@contextmanager
def server_process(store: Path, *, token: str = "") -> Iterator[Process]:
    server = Process(store, token=token)
    server.start()
    try:
        yield server
    finally:
        server.close()


def main() -> None:
    store, fd, token = sys.argv[1:]
    with ortet.open(store) as hub:
        config = uvicorn.Config(make_app(hub, token), log_level="critical", lifespan="off")
        uvicorn.Server(config).run([socket.socket(fileno=int(fd))])


if __name__ == "__main__":
    main()

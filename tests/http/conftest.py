"""A server as its users have it: a process of its own, on a port of loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import pytest
from tests.fixtures import forked, markers
from tests.fixtures.waiting import WAIT

_KEPT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "COVERAGE_PROCESS_START")


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)

    @property
    def kind(self) -> str:
        """Of the error that it must be."""
        assert self.status >= 400, self
        found: str = self.data["kind"]
        return found


class Client:
    """One request, one connection."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url = url
        self.token = token
        self.wait = 60.0
        self._at = urlsplit(url).netloc

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Reply:
        """`body` is JSON unless it is bytes."""
        given = dict(headers or {})
        if self.token:
            given.setdefault("Authorization", f"Bearer {self.token}")
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        if raw is not None:
            given.setdefault("Content-Type", "application/json")
        # what the path holds already stays as it is
        where = quote(path, safe="/%?=&:@+,~{}") + (f"?{urlencode(query, True)}" if query else "")
        connection = HTTPConnection(self._at, timeout=self.wait)
        try:
            connection.request(method, where, raw, given)
            found = connection.getresponse()
            names = {name.lower(): value for name, value in found.getheaders()}
            return Reply(found.status, names, found.read())
        finally:
            connection.close()

    def _done(self, method: str, path: str, body: Any, query: dict[str, Any]) -> Any:
        reply = self.ask(method, path, body, **query)
        assert reply.status < 300, f"{method} {path}: {reply.status} {reply.body!r}"
        return reply.data if reply.body else None

    def get(self, path: str, **query: Any) -> Any:
        """What is answered, which must be no error."""
        return self._done("GET", path, None, query)

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        return self._done("POST", path, {} if body is None else body, query)

    def put(self, path: str, body: Any) -> Any:
        return self._done("PUT", path, body, {})

    def delete(self, path: str, **query: Any) -> Any:
        return self._done("DELETE", path, None, query)

    def new(self, name: str, **options: Any) -> str:
        """A session begun; its path."""
        found = self.post("/sessions", {"name": name, **options})
        return f"/sessions/{found['id']}"


class Server:
    """A started process, which has said that it is ready."""

    def __init__(self, home: Path, *options: str, env: dict[str, str] | None = None) -> None:
        markers.require("server")
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.env = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self.env |= {"HOME": str(home), "LC_ALL": "C.UTF-8", "ORTET_AGENT": "off"}
        self.env |= {"ORTET_AUTHOR": "tester", "ORTET_URL": str(home / "store"), **(env or {})}
        self.log = home / f"server-{next(_NUMBERS)}.log"
        with self.log.open("wb") as log:
            self.process: subprocess.Popen[bytes] = forked.Popen(
                [sys.executable, "-m", "ortet", "serve", "--port", "0", "--json", *options],
                cwd=home,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self._ended()
            raise AssertionError(f"the server did not start: {self.log.read_text()}")
        self.url: str = json.loads(line)["url"]

    @property
    def store(self) -> Path:
        return self.home / "store"

    def client(self, token: str = "") -> Client:
        return Client(self.url, token)

    def token(self, name: str, *options: str) -> str:
        """One that `ortet access create` makes."""
        done = forked.run(
            [sys.executable, "-m", "ortet", "access", "create", name, "--json", *options],
            cwd=self.home,
            env=self.env,
            stdout=subprocess.PIPE,
            check=True,
        )
        found: str = json.loads(done.stdout)["token"]
        return found

    def stop(self) -> int:
        """Asked to end; its exit code."""
        self.process.terminate()
        return self._ended()

    def kill(self) -> None:
        self.process.kill()
        self._ended()

    def _ended(self) -> int:
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(WAIT)


_NUMBERS = count()
Serve = Callable[..., Server]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers, each with the store of this test unless told; they end with it."""
    with ExitStack() as last:

        def start(*options: str, home: Path | None = None, **env: str) -> Server:
            started = Server(home or tmp_path / "served", *options, env=env)
            last.callback(started.kill)
            return started

        yield start


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests of a module, on loopback and without tokens."""
    started = Server(tmp_path_factory.mktemp("served"), "--no-auth")
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture(scope="module")
def client(server: Server) -> Client:
    return server.client()

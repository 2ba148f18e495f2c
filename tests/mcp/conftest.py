"""A project with an MCP server: started as clients start it, driven by the client of the SDK."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from tests.fixtures import forked

WAYS = ("stdio", "http")
ERAS = ("legacy", "2026-07-28")
"""The handshake that most clients speak, and the protocol without one."""


class Answer(NamedTuple):
    """Of a tool: what a model reads, and what a program does."""

    text: str
    data: Any
    failed: bool

    @property
    def kind(self) -> str:
        """Of an error, from its first line: `class (kind): message`."""
        assert self.failed, self.text
        return self.text.partition("(")[2].partition(")")[0]


class Agent:
    """A connected client."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, /, **arguments: Any) -> Answer:
        found = await self.client.call_tool(tool, arguments)
        text = "".join(getattr(part, "text", "") for part in found.content)
        return Answer(text, found.structured_content, bool(found.is_error))

    async def ok(self, tool: str, /, **arguments: Any) -> Any:
        found = await self(tool, **arguments)
        assert not found.failed, found.text
        return found.data

    async def read(self, address: str) -> Any:
        (content,) = (await self.client.read_resource(f"ortet://{address}")).contents
        return content


class Project:
    """A directory that is a workspace, in a home of its own."""

    def __init__(self, root: Path) -> None:
        self.home, self.path = root / "home", root / "proj"
        for place in (self.home, self.path):
            place.mkdir()
        kept = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "COVERAGE_PROCESS_START")
        self.env = {name: os.environ[name] for name in kept if name in os.environ}
        self.env |= {"HOME": str(self.home), "LC_ALL": "C.UTF-8", "ORTET_AUTHOR": "tester"}
        self.env |= {"ORTET_AGENT": "off", "XDG_DATA_HOME": str(self.home / "data")}

    def write(self, name: str, text: str) -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def ortet(self, *words: str, stdin: str = "", code: int | None = 0) -> str:
        done = forked.run(
            [sys.executable, "-m", "ortet", *words],
            cwd=self.path,
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert code in (None, done.returncode), f"{words}: {done.stdout}\n{done.stderr}"
        return f"{done.stdout}{done.stderr}"

    def start(self, *flags: str, **more: Any) -> subprocess.Popen[bytes]:
        """A server whose standard streams are ours."""
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process: subprocess.Popen[bytes] = forked.Popen(
            [sys.executable, "-m", "ortet", "mcp", *flags],
            cwd=self.path,
            env=self.env | more.pop("env", {}),
            **(streams | more),
        )
        return process

    @contextmanager
    def listening(self, *flags: str, env: dict[str, str] | None = None) -> Iterator[Listening]:
        """A server of HTTP, until the block ends; it asks for no token unless `env` has one."""
        if not env:
            flags = (*flags, "--no-auth")
        process = self.start(
            "--http", "0", *flags, env=env or {}, stdin=subprocess.DEVNULL, stdout=None
        )
        assert process.stderr is not None
        try:
            first = process.stderr.readline().decode()
            assert "listens on" in first, first + process.stderr.read().decode()
            rest: list[bytes] = []
            drain = threading.Thread(target=lambda: rest.extend(process.stderr or ()))
            drain.start()
            yield Listening(first.split()[-1], process, rest)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait()
            drain.join()
            process.stderr.close()

    @asynccontextmanager
    async def agent(self, *flags: str, way: str = "stdio", **options: Any) -> AsyncIterator[Agent]:
        options.setdefault("mode", "legacy")
        if way == "stdio":
            program = forked.script(self.home / "ortet-mcp", "mcp", profile="mcp")
            server = StdioServerParameters(
                command=str(program), args=list(flags), env=self.env, cwd=self.path
            )
            async with Client(server, **options) as client:
                yield Agent(client)
        else:
            with self.listening(*flags) as served:
                async with Client(streamable_http_client(served.url), **options) as client:
                    yield Agent(client)


class Listening(NamedTuple):
    url: str
    process: subprocess.Popen[bytes]
    log: list[bytes]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def drive(work: Callable[[], Awaitable[None]]) -> None:
    """Run an async test."""
    anyio.run(work)

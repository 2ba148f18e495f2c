"""A client that sends arbitrary lines to a server."""

from __future__ import annotations

import json
import threading
from typing import Any

from tests.fixtures.mcp_project import Answer, Project


class Wire:
    """One server, its standard streams in our hands."""

    def __init__(self, project: Project, *flags: str) -> None:
        self.process = project.start(*flags)
        self._number = 0
        self._drain = threading.Thread(target=self._read_errors)
        self.errors = b""
        self._drain.start()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._drain.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def send(self, method: str, params: Any = None, *, answered: bool = True) -> int:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if answered:
            self._number += 1
            message["id"] = self._number
        self.write(json.dumps(message).encode() + b"\n")
        return self._number

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, method: str, params: Any = None) -> Any:
        number = self.send(method, params)
        while (found := self.read()).get("id") != number:
            pass
        return found

    def greet(self) -> None:
        me = {"name": "test", "version": "1"}
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": me}
        answer = self.ask("initialize", params)
        assert answer["result"]["serverInfo"]["name"] == "ortet"
        self.send("notifications/initialized", answered=False)

    def call(self, tool: str, /, **arguments: Any) -> Answer:
        found = self.ask("tools/call", {"name": tool, "arguments": arguments})["result"]
        text = found["content"][0]["text"]
        return Answer(text, found.get("structuredContent"), found.get("isError", False))

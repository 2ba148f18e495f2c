"""A model API on loopback, for the real command line program of Claude Code: no key, no model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from uuid import uuid4


class Api(ThreadingHTTPServer):
    """Answers a prompt "RUN: command" with a call of Bash, all else with a text."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def serving() -> Iterator[Api]:
    with Api() as api:
        thread = Thread(target=api.serve_forever, daemon=True)
        thread.start()
        try:
            yield api
        finally:
            api.shutdown()
            thread.join()


def _texts(message: dict[str, Any]) -> str:
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return "\n".join(part["text"] for part in parts if part["type"] == "text")


def _is_result(message: dict[str, Any]) -> bool:
    content = message["content"]
    return isinstance(content, list) and any(part["type"] == "tool_result" for part in content)


def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
    users = [message for message in messages if message["role"] == "user"]
    _, run, command = _texts(users[-1]).rpartition("RUN: ")
    if _is_result(users[-1]):
        return {"type": "text", "text": "it is done"}
    if not run:
        return {"type": "text", "text": f"{len(users)} prompts so far"}
    given = {"command": command.splitlines()[0], "description": "as asked"}
    return {"type": "tool_use", "id": f"toolu_{uuid4().hex}", "name": "Bash", "input": given}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Api

    def log_message(self, *_: Any) -> None: ...

    def do_HEAD(self) -> None:
        self._send(b"", "text/plain")

    def do_GET(self) -> None:
        self._send(b"{}", "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        if "messages" not in body or "count_tokens" in self.path:
            self._send(b'{"input_tokens": 1}', "application/json")
            return
        self.server.asked.append(body)
        self._send(_streamed(answer(body["messages"]), body["model"]), "text/event-stream")

    def _send(self, body: bytes, media: str) -> None:
        self.send_response(200)
        self.send_header("content-type", media)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _streamed(block: dict[str, Any], model: str) -> bytes:
    message: dict[str, Any] = {
        "id": f"msg_{uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    start: dict[str, Any]
    if block["type"] == "text":
        start, delta = {"text": ""}, {"type": "text_delta", "text": block["text"]}
    else:
        given = json.dumps(block["input"])
        start, delta = {"input": {}}, {"type": "input_json_delta", "partial_json": given}
    reason = "end_turn" if block["type"] == "text" else "tool_use"
    events: list[tuple[str, dict[str, Any]]] = [
        ("message_start", {"message": message}),
        ("content_block_start", {"index": 0, "content_block": {**block, **start}}),
        ("content_block_delta", {"index": 0, "delta": delta}),
        ("content_block_stop", {"index": 0}),
        (
            "message_delta",
            {
                "delta": {"stop_reason": reason, "stop_sequence": None},
                "usage": {"output_tokens": 1},
            },
        ),
        ("message_stop", {}),
    ]
    lines = (f"event: {t}\ndata: {json.dumps({'type': t, **d})}\n\n" for t, d in events)
    return "".join(lines).encode()

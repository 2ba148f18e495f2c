"""A Python language server, talked to over pipes that the machine holds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.waiting import WAIT
from tests.live.lives import Life

from ortet.sessions.session import Session

_PINS = Path(__file__).parents[2] / "requirements" / "language-server.txt"
_CODE = '''\
def answer() -> int:
    """Said before the commit."""
    return 42


answer()
'''


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment that has the server."""
    root = tmp_path_factory.mktemp("language-server")
    subprocess.run([sys.executable, "-m", "venv", str(root)], check=True)
    words = ["-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-qq"]
    python = root / "bin" / "python"
    subprocess.run([str(python), *words, "--require-hashes", "-r", str(_PINS)], check=True)
    return python


class Client:
    """One end of the protocol; `number` and `cursor` are where the last request left them."""

    def __init__(self, session: Session, number: int = 0, cursor: int = 0) -> None:
        self._job = session.programs.job("pylsp")
        self._at = session.machine.row.directory
        self.number = number
        self.cursor = cursor

    def on(self, session: Session) -> Client:
        """The same conversation, gone on with in a copy."""
        return Client(session, self.number, self.cursor)

    def tell(self, method: str, **params: Any) -> None:
        self._send({"method": method, "params": params})

    def ask(self, method: str, **params: Any) -> Any:
        self.number += 1
        self._send({"id": self.number, "method": method, "params": params})
        for message in self._messages():
            if message.get("id") == self.number and "method" not in message:
                assert "error" not in message, message
                return message["result"]
        raise AssertionError(f"no answer to {method}: {self._job.logs()[-2000:]!r}")

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._job.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def _messages(self) -> Iterator[dict[str, Any]]:
        data = b""
        while True:
            head, found, rest = data.partition(b"\r\n\r\n")
            size = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]) if found else 0
            if found and len(rest) >= size:
                data = rest[size:]
                if not data:
                    yield json.loads(rest)
                    continue
                yield json.loads(rest[:size])
                continue
            piece = self._job.read(self.cursor, WAIT)
            if not piece.data:
                return
            data, self.cursor = data + piece.data, piece.cursor


@pytest.mark.slow
def test_a_language_server_session_continues_in_each_copy(life: Life, python: Path) -> None:
    (life.project / "code.py").write_text(_CODE)
    session = life.begin()
    session.spawn("pylsp", [str(python), "-m", "pylsp"], stdin=True)
    client = Client(session)
    root = life.project.as_uri()
    uri = f"{root}/code.py"
    said = client.ask("initialize", processId=None, rootUri=root, capabilities={})
    assert said["capabilities"]["hoverProvider"]
    client.tell("initialized")
    document = {"uri": uri, "languageId": "python", "version": 1, "text": _CODE}
    client.tell("textDocument/didOpen", textDocument=document)

    def hover(one: Client) -> str:
        place = {"textDocument": {"uri": uri}, "position": {"line": 5, "character": 2}}
        return json.dumps(one.ask("textDocument/hover", **place))

    assert "Said before the commit" in hover(client)
    clients: dict[str, Client] = {}
    versions: dict[str, int] = {}

    def use(copy: Session, mark: str) -> None:
        """Its documents are in its memory alone: the file on disk is never written."""
        one = clients.get(mark) or client.on(copy)
        was = f"Said by {mark}" if mark in clients else "Said before the commit"
        assert was in hover(one)
        clients[mark] = one
        versions[mark] = versions.get(mark, 1) + 1
        text = _CODE.replace("Said before the commit", f"Said by {mark}")
        document = {"uri": uri, "version": versions[mark]}
        one.tell("textDocument/didChange", textDocument=document, contentChanges=[{"text": text}])
        assert f"Said by {mark}" in hover(one)

    life.all_of_it(session, use)

"""A node server that watches its files, as development servers do."""

from __future__ import annotations

import shutil

import pytest
from tests.live.lives import Life, told, until

from ortet.errors import Conflict
from ortet.sessions.session import Session

_SERVER = """
const http = require("http"), fs = require("fs");
let page = fs.readFileSync("page.txt", "utf8"), served = 0, seen = 0;
fs.watch(".", (event, name) => {
  if (name !== "page.txt") return;
  seen++;
  fs.readFile("page.txt", "utf8", (error, text) => { if (text) page = text; });
});
http.createServer((request, response) => {
  served++;
  response.end(`${page.trim()} ${served}\\n`);
}).listen(3000, "127.0.0.1");
"""
_RING = "ls -l /proc/$(pgrep -x node)/fd | grep -q io_uring"


@pytest.fixture
def session(life: Life) -> Session:
    assert shutil.which("node"), "no Node.js is installed: scripts/test-tools installs it"
    (life.project / "server.js").write_text(_SERVER)
    (life.project / "page.txt").write_text("hello\n")
    return life.begin()


def get(session: Session) -> list[str]:
    return told(session, "curl -sf http://127.0.0.1:3000/").split()


def test_a_node_server_with_a_file_watcher_continues_in_each_copy(
    life: Life, session: Session
) -> None:
    session.spawn("dev", ["node", "server.js"], env={"UV_USE_IO_URING": "0"})
    until(session, "curl -sf http://127.0.0.1:3000/")
    served = int(get(session)[1])
    seen: dict[str, int] = {}

    def use(copy: Session, mark: str) -> None:
        page, number = get(copy)
        if mark not in seen:
            assert (page, int(number)) == ("hello", served + 1)  # its memory is from the commit
        else:
            assert page == f"{mark}-{seen[mark]}"  # what it saw itself, and nobody else's
        seen[mark] = seen.get(mark, 0) + 1
        told(copy, f"echo {mark}-{seen[mark]} > page.txt")
        until(copy, f"curl -sf http://127.0.0.1:3000/ | grep '^{mark}-{seen[mark]} '")

    life.all_of_it(session, use)


def test_commit_of_a_node_server_with_io_uring_is_refused_with_advice(session: Session) -> None:
    job = session.spawn("dev", ["node", "server.js"], env={"UV_USE_IO_URING": "1"})
    until(session, "curl -sf http://127.0.0.1:3000/")
    known = told(session, "node -p process.versions.uv").split(".")
    if tuple(map(int, known)) < (1, 45):  # it has none
        session.commit("without")
        return
    until(session, _RING)
    with pytest.raises(Conflict) as caught:
        session.commit("no")
    assert caught.value.kind == "cannot_freeze"
    assert "UV_USE_IO_URING=0" in str(caught.value)
    assert get(session)[0] == "hello"
    job.kill()
    session.commit("yes")

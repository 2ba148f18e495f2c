"""A terminal over a WebSocket in a real machine, with several clients."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.http_terminal import said, shown, terminal, type_
from tests.fixtures.waiting import WAIT, eventually
from tests.server.event_streams import streaming
from websockets.exceptions import ConnectionClosed, InvalidStatus

if TYPE_CHECKING:
    from tests.fixtures.http_server import Client, Serve, Server

live = pytest.mark.criu


@live
def test_typed_input_runs_in_the_machine(server: Server, client: Client) -> None:
    path = client.new("typed")
    with terminal(server.url, path) as socket:
        type_(socket, "echo $((6*7))-done > made; cat made")
        assert "42-done" in shown(socket, "42-done")
        socket.send(json.dumps({"resize": {"rows": 33, "cols": 111}}))
        type_(socket, "stty size")
        assert "33 111" in shown(socket, "33 111")


@live
def test_all_clients_see_the_same_output_and_the_shell_outlives_them(
    server: Server, client: Client
) -> None:
    path = client.new("shared")
    with terminal(server.url, path) as one, terminal(server.url, path) as other:
        type_(one, "echo $((40+2))-first")
        shown(one, "42-first")
        shown(other, "42-first")
        type_(other, "name=$((50+1))")
        shown(other, "name=")
    with terminal(server.url, path) as again:
        assert "42-first" in shown(again, "42-first")  # what was shown before
        type_(again, "echo still-$name")
        shown(again, "still-51")


@live
def test_input_typed_before_disconnecting_is_executed(server: Server, client: Client) -> None:
    path = client.new("left")
    with terminal(server.url, path) as stays:
        type_(stays, "while sleep 0.001; do echo noise; done & PS1=")  # it shows what nobody takes
        shown(stays, "noise")
        for number in range(30):
            with terminal(server.url, path) as leaves:
                type_(leaves, f"echo {number} >> made")
        type_(stays, "kill %1; wait")

        def made() -> str | None:
            """Return the lines once all are there: some may still be on their way."""
            type_(stays, "echo \"<$(sort -n made | tr '\\n' ,)>\"")
            found: str = re.findall(r"<([\d,]*)>", shown(stays, r"<[\d,]*>"))[-1]
            return found if found.count(",") >= 30 else None

        done = eventually(made)
    assert done == ",".join(map(str, range(30))) + ","


@live
def test_terminal_reports_the_exit_of_its_shell(server: Server, client: Client) -> None:
    path = client.new("ended")
    with terminal(server.url, path) as socket:
        type_(socket, "exit 7")
        assert said(socket) == {"exit": 7}
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(timeout=WAIT)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1000


@live
def test_terminal_output_is_also_an_event_stream(server: Server, client: Client) -> None:
    path = client.new("stream")
    with terminal(server.url, path) as socket:
        type_(socket, "echo $((20+3))-seen")
        shown(socket, "23-seen")
        with streaming(server.url, f"{path}/jobs/main/output/stream") as stream:
            text = ""
            for one in stream:
                text += one.data.get("data", "") if not one.name else ""
                if "23-seen" in text:
                    break
            last = stream.last
        type_(socket, "echo ä$((30+3))-later; exit")
        with streaming(server.url, f"{path}/jobs/main/output/stream", last=last) as stream:
            found = stream.upto("end")
    rest = "".join(one.data["data"] for one in found if not one.name)
    assert "ä33-later" in rest
    assert "23-seen" not in rest
    assert [one.data for one in found if one.name == "exit"] == [{"code": 0}]
    assert found[-1].data == {"reason": "exited"}
    reply = client.ask(
        "GET", f"{path}/jobs/main/output/stream", headers={"Last-Event-ID": found[-1].id}
    )
    assert reply.status == 204  # a browser does not ask again


@live
def test_malformed_frame_is_answered_and_the_terminal_continues(
    server: Server, client: Client
) -> None:
    path = client.new("frames")
    with terminal(server.url, path) as socket:
        for bad in ("", "[]", '{"resize": {"rows": 0, "cols": 1}}', '{"other": 1}', "{"):
            socket.send(bad)
            assert said(socket)["error"]["kind"] == "bad_frame"
        type_(socket, "echo $((1+1))-fine")
        shown(socket, "2-fine")


@live
def test_a_session_in_place_has_no_terminal(server: Server, client: Client, tmp_path: Path) -> None:
    path = client.new("folder", workspace=str(tmp_path), engine="folder")
    with pytest.raises(InvalidStatus) as caught, terminal(server.url, path):
        pass
    assert caught.value.response.status_code == 501
    assert json.loads(caught.value.response.body)["kind"] == "no_processes"


def test_terminal_needs_the_run_right(serve: Serve) -> None:
    server = serve()
    owner, writer = server.token("owner", "--allow", "admin"), server.token("w", "--allow", "write")
    path = server.client(owner).new("guarded")
    for token, status in (("", 401), (writer, 403), ("ortet_1_2", 401)):
        with pytest.raises(InvalidStatus) as caught, terminal(server.url, path, token):
            pass
        assert caught.value.response.status_code == status
    with pytest.raises(InvalidStatus) as caught, terminal(server.url, "/sessions/none", owner):
        pass
    assert caught.value.response.status_code == 404


def test_a_page_of_another_site_gets_no_terminal(server: Server, client: Client) -> None:
    path = client.new("origin")
    with (
        pytest.raises(InvalidStatus) as caught,
        terminal(server.url, path, origin="http://elsewhere.example"),
    ):
        pass
    assert caught.value.response.status_code == 403
    assert json.loads(caught.value.response.body)["kind"] == "foreign_page"


@live
def test_stopping_server_closes_the_terminal_with_a_reason(serve: Serve) -> None:
    server = serve("--no-auth")
    path = server.client().new("stopping")
    with terminal(server.url, path) as socket:
        type_(socket, "echo $((2+3))-here")
        shown(socket, "5-here")
        assert server.stop() == 0
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                socket.recv(timeout=WAIT)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1012

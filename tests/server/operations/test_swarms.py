"""Swarms over HTTP: run in the background, streamed, and continued by another server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.waiting import WAIT, eventually
from tests.server.event_streams import Stream, streaming

if TYPE_CHECKING:
    from tests.fixtures.http_server import Client, Serve, Server

TASK = "echo attempt $ORTET_ATTEMPT > made; echo $ORTET_ATTEMPT >> tried"
SCORE = "cat tried"


class Gate:
    """Attempts say that they are there, and wait until they may go on."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._changed = Condition()
        self._open: set[int] = set()
        self.tries: dict[int, int] = {}
        self._here: dict[int, int] = {}
        Thread(target=self._accept, daemon=True).start()

    @property
    def task(self) -> list[str]:
        """Its score is its number."""
        port = self._listener.getsockname()[1]
        talk = f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo $ORTET_ATTEMPT >&3; read word <&3"
        return ["bash", "-c", f"{talk}; echo $ORTET_ATTEMPT | tee tried"]

    def let(self, *attempts: int) -> None:
        with self._changed:
            self._open.update(attempts)
            self._changed.notify_all()

    def arrived(self, *attempts: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: {*attempts} <= {*self.tries}, 2 * WAIT), (
                self.tries
            )

    def left(self, *attempts: int) -> None:
        """Wait until no process of these attempts is there."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: not any(self._here.get(i) for i in attempts), 2 * WAIT
            ), self._here

    def close(self) -> None:
        self.let(*range(100))
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                Thread(target=self._hold, args=self._listener.accept()[:1], daemon=True).start()

    def _hold(self, visitor: socket.socket) -> None:
        with visitor, suppress(OSError):
            i = int(visitor.makefile().readline())
            with self._changed:
                self.tries[i] = self.tries.get(i, 0) + 1
                self._here[i] = self._here.get(i, 0) + 1
                self._changed.notify_all()
            Thread(target=self._see_off, args=(visitor.dup(), i), daemon=True).start()
            with self._changed:
                self._changed.wait_for(lambda: i in self._open)
            visitor.sendall(b"go\n")

    def _see_off(self, visitor: socket.socket, i: int) -> None:
        with visitor, suppress(OSError):
            visitor.recv(1)  # its process says nothing more, so this returns at its end
        with self._changed:
            self._here[i] -= 1
            self._changed.notify_all()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.close()


def finished(client: Client, path: str) -> Any:
    """Wait until a swarm is finished and return it."""
    eventually(lambda: client.get(path)["state"] == "finished", 120, say=lambda: client.get(path))
    return client.get(path)


def states(found: Any) -> list[str]:
    return [one["state"] for one in found["attempts"]]


def test_the_best_of_eight_is_adopted_and_every_attempt_is_reported(
    server: Server, client: Client
) -> None:
    path = client.new("eight", engine="overlay")
    begun = client.ask(
        "POST", f"{path}/swarms", {"task": TASK, "score": SCORE, "n": 8, "parallel": 2}
    )
    assert begun.status == 202, begun
    swarm = f"{path}/swarms/{begun.data['name']}"
    assert begun.data["name"] == "swarm-1"
    with streaming(server.url, f"{swarm}/stream") as stream:
        heard = stream.upto("end")
    assert heard[-1].data == {"reason": "finished"}
    last = {one.data["i"]: one.data for one in heard if not one.name}
    assert sorted(last) == list(range(8))
    assert all(one["state"] == "done" and one["score"] == i for i, one in last.items())
    stages = [one.data["state"] for one in heard if one.name == "swarm"]
    assert stages[-1] == "finished"
    found = client.get(swarm)
    assert (found["state"], found["kept"], found["driven"]) == ("finished", [7], False)
    assert client.post(f"{path}/run", {"command": "cat made"})["stdout"] == "attempt 7\n"
    assert [one["name"] for one in client.get(f"{path}/swarms")["items"]] == ["swarm-1"]
    # whoever was there to the end is not called again
    after = client.ask("GET", f"{swarm}/stream", headers={"Last-Event-ID": heard[-1].id})
    assert after.status == 204
    missing = client.ask("GET", f"{path}/swarms/none/stream")
    assert (missing.status, missing.kind) == (404, "no_swarm")
    wrong = client.ask("GET", f"{swarm}/stream", headers={"Last-Event-ID": "~~"})
    assert (wrong.status, wrong.kind) == (422, "bad_cursor")


@pytest.mark.slow
def test_swarm_stream_resumes_after_the_last_event_id(
    server: Server, client: Client, gate: Gate
) -> None:
    path = client.new("resumed", engine="overlay")
    ask = {"task": gate.task, "n": 4, "parallel": 2, "name": "slow"}
    begun = client.post(f"{path}/swarms", ask)
    assert (begun["state"], begun["driven"], len(begun["attempts"])) == ("running", True, 4)
    swarm = f"{path}/swarms/slow"
    gate.let(0)
    with streaming(server.url, f"{swarm}/stream") as stream:
        first = [_until_done(stream, 0)]
        last = stream.last
    # its session can be read meanwhile, and other sessions do as they like
    assert client.get(f"{path}/events")["items"]
    other = client.new("beside", engine="overlay")
    assert client.post(f"{other}/run", {"command": "echo x"})["stdout"] == "x\n"
    again = client.ask("POST", f"{path}/swarms", {**ask, "name": "second"})
    assert (again.status, again.kind) == (503, "session_busy")
    gate.let(*range(8))
    with streaming(server.url, f"{swarm}/stream", last=last) as stream:
        rest = stream.upto("end")
    told = [one.data["i"] for one in rest if not one.name]
    assert 0 not in told  # it has that already
    assert {first[0]["i"], *told} == {0, 1, 2, 3}
    assert finished(client, swarm)["kept"] == [3]


def _until_done(stream: Stream, i: int) -> Any:
    for one in stream:
        if not one.name and one.data["i"] == i and one.data["state"] == "done":
            return one.data
    raise AssertionError(f"{i} was never done")


def test_stopped_swarm_keeps_the_best_finished_attempt(client: Client, gate: Gate) -> None:
    path = client.new("stopped", engine="overlay")
    ask = {"task": gate.task, "n": 6, "parallel": 2, "name": "halted"}
    client.post(f"{path}/swarms", ask)
    swarm = f"{path}/swarms/halted"
    gate.let(0)
    eventually(lambda: states(client.get(swarm))[0] == "done")
    told = client.post(f"{swarm}/stop")
    assert told["name"] == "halted"
    found = finished(client, swarm)
    assert states(found)[0] == "done"
    assert set(states(found)[1:]) == {"stopped"}
    assert found["kept"] == [0]
    assert client.post(f"{path}/run", {"command": "cat tried"})["stdout"] == "0\n"
    assert client.post(f"{swarm}/stop")["state"] == "finished"  # which it is already


def test_swarm_stops_when_an_attempt_reaches_the_score(client: Client) -> None:
    path = client.new("score", engine="overlay")
    ask = {"task": "echo $ORTET_ATTEMPT", "n": 50, "parallel": 1, "stop_when": 2, "name": "few"}
    client.post(f"{path}/swarms", ask)
    found = finished(client, f"{path}/swarms/few")
    assert states(found) == ["done"] * 3 + ["stopped"] * 47


def test_remaining_attempts_can_be_adopted_merged_and_kept(client: Client) -> None:
    path = client.new("by-hand", engine="overlay")
    client.post(f"{path}/run", {"command": "echo base > base"})
    task = "echo $ORTET_ATTEMPT > file-$ORTET_ATTEMPT; echo $ORTET_ATTEMPT"
    ask = {"task": task, "n": 3, "keep": 0, "losers": "keep", "name": "left"}
    client.post(f"{path}/swarms", ask)
    swarm = f"{path}/swarms/left"
    found = finished(client, swarm)
    assert found["kept"] == []
    family = {one["name"] for one in client.get("/sessions", search="by-hand/")["items"]}
    assert len(family) == 3
    moved = client.post(f"{swarm}/adopt")  # the best
    assert moved["to"] == found["attempts"][2]["commit"]
    merged = client.post(f"{swarm}/merge", {"attempt": 0})
    assert not merged["up_to_date"]
    assert merged["conflicts"] == []
    listing = client.post(f"{path}/run", {"command": "ls"})["stdout"].split()
    assert listing == ["base", "file-0", "file-2"]
    none = client.ask("POST", f"{swarm}/adopt", {"attempt": 9})
    assert (none.status, none.kind) == (404, "no_attempt")
    kept = client.post(f"{swarm}/keep", {"attempts": [1]})
    assert kept["kept"] == [found["attempts"][1]["session"]]
    assert len(kept["dropped"]) == 2
    left = {one["name"] for one in client.get("/sessions", search="by-hand/")["items"]}
    assert left == set(kept["kept"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"task": ""}, 422),
        ({"task": "true", "n": 0}, 422),
        ({"task": "true", "keep": "none"}, 422),
        ({"task": "true", "name": "1"}, 422),
        ({"task": "true", "name": "a/b"}, 422),
        ({"task": "true", "budget": {"usd": -1}}, 422),
        ({"task": "true", "at": "nowhere"}, 404),
        ({"task": "true", "stop_when": "x"}, 422),
        ({"task": "true", "on": "ray"}, 501),  # which nobody gave this server
        ({"task": "true", "on": "ray://127.0.0.1:10001"}, 422),
        ({"task": "true", "on": ""}, 422),
        ({"task": "true", "needs": {"cpu": 1}}, 422),
    ],
)
def test_bad_swarm_request_is_refused_and_makes_no_swarm(
    client: Client, body: Any, status: int
) -> None:
    path = client.new("wrong", engine="overlay")
    assert client.ask("POST", f"{path}/swarms", body).status == status
    assert client.get(f"{path}/swarms")["items"] == []


def test_bad_ray_address_stops_the_server_at_start(serve: Serve, tmp_path: Path) -> None:
    store = tmp_path / "served" / "store"
    with pytest.raises(AssertionError, match="--ray http://here: give ray for the cluster"):
        serve("--no-auth", "--ray", "http://here")
    (store / "config.toml").write_text('[serve]\nray = "there"\n')
    with pytest.raises(AssertionError, match="--ray there: give ray for the cluster"):
        serve("--no-auth")


def test_verbs_on_an_unknown_swarm_are_404(client: Client) -> None:
    path = client.new("nothing", engine="overlay")
    for method, tail in (("GET", ""), ("POST", "/stop"), ("POST", "/resume"), ("POST", "/adopt")):
        reply = client.ask(method, f"{path}/swarms/none{tail}", {} if tail else None)
        assert (reply.status, reply.kind) == (404, "no_swarm"), tail


def _two_done(server: Server, gate: Gate) -> str:
    """A swarm of eight, two of which are done, and two wait."""
    client = server.client()
    path = client.new("cut", engine="overlay")
    ask = {"task": gate.task, "n": 8, "parallel": 2, "name": "long"}
    client.post(f"{path}/swarms", ask)
    gate.let(0, 1)
    gate.arrived(2, 3)
    return f"{path}/swarms/long"


def _finished_by(server: Server, swarm: str, gate: Gate, last: str) -> None:
    """Another server goes on; nothing that was done is done again."""
    client = server.client()
    before = client.get(swarm)
    assert (before["state"], before["driven"]) == ("running", False)
    gate.left(2, 3)  # else what was begun would end in time, and not be tried again
    gate.let(*range(8))
    resumed = client.ask("POST", f"{swarm}/resume", {"parallel": 2})
    assert resumed.status == 202, resumed
    with streaming(server.url, f"{swarm}/stream", last=last) as stream:
        heard = stream.upto("end")
    told = {one.data["i"] for one in heard if not one.name}
    assert told == {2, 3, 4, 5, 6, 7}
    found = client.get(swarm)
    assert found["state"] == "finished"
    assert states(found) == ["done"] * 8
    assert found["kept"] == [7]
    assert [one["score"] for one in found["attempts"]] == [float(i) for i in range(8)]
    assert [one["tries"] for one in found["attempts"]] == [1, 1, 2, 2, 1, 1, 1, 1]
    assert gate.tries == {0: 1, 1: 1, 2: 2, 3: 2, 4: 1, 5: 1, 6: 1, 7: 1}
    path = swarm.partition("/swarms/")[0]
    assert client.post(f"{path}/run", {"command": "cat tried"})["stdout"] == "7\n"


def test_swarm_of_a_killed_server_loses_no_attempt_and_counts_none_twice(
    serve: Serve, gate: Gate
) -> None:
    first = serve("--no-auth")
    swarm = _two_done(first, gate)
    with streaming(first.url, f"{swarm}/stream") as stream:
        stream.upto("live")
        last = stream.last
    first.kill()
    _finished_by(serve("--no-auth"), swarm, gate, last)


def test_stopping_server_detaches_from_its_swarm(serve: Serve, gate: Gate) -> None:
    first, second = serve("--no-auth"), serve("--no-auth")
    swarm = _two_done(first, gate)
    driven = second.client().ask("POST", f"{swarm}/stop")
    assert (driven.status, driven.kind) == (409, "not_driven")
    with streaming(first.url, f"{swarm}/stream") as stream:
        stream.upto("live")
        last = stream.last
        assert first.stop() == 0
        assert stream.upto("end")[-1].data == {"reason": "stopping"}
    _finished_by(second, swarm, gate, last)

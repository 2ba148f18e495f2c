"""Swarms on the nodes of a real Ray cluster, each with its own cache, as hosts have; nodes die."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fixtures import forked
from tests.fixtures.http_server import Client, Server
from tests.fixtures.postgres import Shared, drop_schema, new_schema, shared
from tests.fixtures.ray import Address, RayCluster
from tests.fixtures.ray import shared as shared_cluster
from tests.fixtures.waiting import WAIT, eventually
from tests.swarm import tasks

from ortet.config.environment import open_hub
from ortet.errors import Invalid, Refused, Unavailable, Unsupported
from ortet.hub.hub import Hub
from ortet.sessions.session import Session
from ortet.sessions.swarm_api import SwarmResult, SwarmStopSignal
from ortet.swarm.attempt import AttemptJob
from ortet.swarm.plan import KeepRule, SwarmTerms
from ortet.swarm.records import SwarmRecords, SwarmRow, create_swarm
from ortet.swarm.task_transport import pack_task
from ortet.swarm.workers import ray_node
from ortet.swarm.workers.client import worker_config
from ortet.swarm.workers.placement import RayClusterSpec, ray_worker_config

LIMIT = 120.0
"""Seconds that Ray may need to begin or to end attempts, before ORTET_TEST_PATIENCE."""
ROOT = Path(__file__).resolve().parents[3]
DRIVER = """
import ortet
from tests.swarm import tasks

with ortet.open("{url}") as hub:
    hub.session("left").swarm(tasks.block, n=3, parallel=3, name="on", on="ray")
"""


@pytest.fixture
def cluster() -> Address:
    """The cluster of this run."""
    return shared_cluster()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[RayCluster]:
    """A cluster of one test, which ends parts of it."""
    with closing(RayCluster(env={"XDG_CACHE_HOME": str(tmp_path / "north")})) as cluster:
        yield cluster


@pytest.fixture
def hub(postgres: Shared, tmp_path: Path) -> Iterator[Hub]:
    """A hub on a store that many hosts share, because tasks of the cluster open it too."""
    schema = new_schema()
    url = f"{shared().url()}&bucket=file://{tmp_path}/bucket&schema={schema}"
    with open_hub(url, environ={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "here")}) as hub:
        yield hub
    drop_schema(shared().url(), schema)


@pytest.fixture
def joined(cluster: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """This host is a node: on="ray" finds the cluster."""
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)


def states(result: SwarmResult) -> list[str]:
    return [one.state if one.state != "failed" else one.reason for one in result.attempts]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def note(session: Session, word: str) -> None:
    """Leave a line where the test finds it; whole, though others write, too."""
    fd = os.open(
        str(session.conversation.notes()["marks"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
    )
    os.write(fd, f"{word}\n".encode())
    os.close(fd)


def write(session: Session, i: int) -> str:
    session.run(f"echo {i} > answer")
    session.learn(f"learned by {i}")
    return os.path.basename(os.environ["XDG_CACHE_HOME"])


def answer(session: Session, i: int) -> int:
    return int(session.run("cat answer").stdout)


def fail(session: Session, i: int) -> int:
    """Each in another way; the last is fine."""
    if i == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if i == 1:
        raise RuntimeError("it went wrong")
    session.spend(usd=0.1)
    return i


def sink(session: Session, i: int) -> int:
    """What begins on the node that is doomed never ends; elsewhere none ends before one has."""
    marks = Path(str(session.conversation.notes()["marks"]))
    node = os.path.basename(os.environ["XDG_CACHE_HOME"])
    note(session, f"began {i} {node} {os.getpid()}")
    session.learn(f"learned by {i} on {node}")
    while node == "doomed":
        signal.pause()
    eventually(lambda: any("doomed" in line for line in lines(marks)), LIMIT)
    note(session, f"done {i}")
    return i


def stall(session: Session, i: int) -> int:
    """Once for ever, then not."""
    note(session, f"began {i} {os.getpid()}")
    while len(lines(Path(str(session.conversation.notes()["marks"])))) == 1:
        signal.pause()
    return 7


@pytest.mark.slow
@pytest.mark.usefixtures("joined")
def test_attempts_run_on_nodes_with_the_needed_resources(hub: Hub, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "answer").write_text("none\n")
    session = hub.session("far", workspace=work)
    shown: list[SwarmResult] = []
    options: dict[str, Any] = {"score": answer, "on": "ray", "harvest": True}
    result = session.swarm(
        write, n=3, parallel=2, needs={"cpu": 1, "north": 1}, progress=shown.append, **options
    )
    assert states(result) == ["done"] * 3, [one.error for one in result.attempts]
    assert [one.value for one in result.attempts] == ["north"] * 3
    assert [one.tries for one in result.attempts] == [1] * 3
    assert (work / "answer").read_text() == "2\n"
    assert sorted(fact.text for fact in session.facts()) == [f"learned by {i}" for i in range(3)]
    assert [row.name for row in hub.sessions()] == ["far"]
    assert [row.name for row in hub.workspaces.table.all()] == [session.internals.row.branch]
    assert {"running", "finished"} <= {one.state for one in shown}
    hub.verify()
    with pytest.raises(Refused, match="no node of the cluster has what"):
        session.swarm(write, n=1, on="ray", needs={"unicorn": 1})
    result = session.swarm(write, n=2, keep=2, **options)
    one = hub.session(result.winners[0].session)
    assert (one.run("cat answer").stdout, (work / "answer").read_text()) == ("1\n", "2\n")


@pytest.mark.slow
@pytest.mark.usefixtures("joined")
def test_swarm_whose_driver_is_killed_is_resumed_and_stopped(hub: Hub, tmp_path: Path) -> None:
    """What ran ends; who goes on makes what was not done, and can be stopped."""
    marks = tmp_path / "marks"
    with hub.session("left") as session:
        session.note("marks", str(marks))
    code = DRIVER.format(url=hub.url)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "here"), "PYTHONPATH": str(ROOT)}

    def first() -> str:
        """What has become of the one that ends by itself."""
        return hub.swarms.get(hub.get("left"), "on").attempts[0].state

    with forked.Popen([sys.executable, "-c", code], env=env) as driver:
        try:
            eventually(lambda: len(lines(marks)) == 2, LIMIT, say="they have not begun")
            eventually(lambda: first() == "done", LIMIT, say="it has not ended")
        finally:
            driver.kill()

    def living() -> list[str]:
        pids = [line.split()[1] for line in lines(marks)]
        return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]

    eventually(lambda: not living(), LIMIT, say="they outlived their driver")

    def stop() -> None:
        eventually(lambda: len(lines(marks)) == 4, LIMIT, say="they have not begun again")
        halt.stop()

    with SwarmStopSignal() as halt:
        enough = threading.Thread(target=stop)
        enough.start()
        session = hub.session("left")
        result = session.swarm(tasks.block, n=3, parallel=3, name="on", on="ray", halt=halt)
        enough.join()
    eventually(lambda: not living(), LIMIT, say="they were not stopped")
    assert states(result) == ["done", "stopped", "stopped"]
    assert [one.tries for one in result.attempts] == [1, 2, 2]
    assert [row.name for row in hub.sessions()] == ["left"]


@pytest.mark.slow
def test_ray_client_outside_of_the_cluster_sends_its_modules(
    cluster: Address, tmp_path: Path
) -> None:
    """What goes wrong is told as on one host. All nodes are this one: its directory will do."""
    more = 5

    with open_hub(tmp_path / "store") as hub:
        session = hub.session("near", budget={"usd": 1.0})
        result = session.swarm(
            lambda s, i: fail(s, i) + more,
            n=3,
            parallel=3,
            budget={"usd": 0.2},
            on=cluster.url,
        )
        assert states(result) == ["crash", "error", "done"]
        assert "it went wrong" in result.attempts[1].error
        assert (result.kept, result.winners[0].score) == ([2], 7)
        result = session.swarm(lambda s, i: signal.pause(), n=1, timeout=1, on=cluster.url)
        assert (states(result), result.kept) == (["timeout"], [])
        assert session.accounting.budget_left()["usd"] == pytest.approx(0.9)
        assert [row.name for row in hub.sessions()] == ["near"]


def made(client: Client, path: str) -> str:
    """What the best has left; nothing while the session is busy."""
    reply = client.ask("POST", f"{path}/run", {"command": "cat made"})
    return str(reply.data["stdout"]) if reply.status == 200 else ""


@pytest.mark.usefixtures("joined")
@pytest.mark.server
@pytest.mark.slow
def test_server_uses_the_cluster_that_its_operator_set(cluster: Address, tmp_path: Path) -> None:
    server = Server(tmp_path / "served", "--no-auth", "--ray", cluster.url)
    try:
        client = server.client()
        client.wait = 6 * WAIT  # Ray has its own limits
        path = client.new("asked", engine="overlay")
        ask = {"task": "echo $ORTET_ATTEMPT | tee made", "n": 2, "name": "far", "on": "ray"}
        for other in (cluster.url, "ray://127.0.0.1:1", "auto"):
            reply = client.ask("POST", f"{path}/swarms", {**ask, "on": other})
            assert (reply.status, reply.kind) == (422, "bad_place")
        reply = client.ask("POST", f"{path}/swarms", {**ask, "needs": {"unicorn": 1}})
        assert (reply.status, reply.kind) == (403, "no_node")
        assert client.get(f"{path}/swarms")["items"] == []
        client.post(f"{path}/swarms", {**ask, "needs": {"north": 1}})
        eventually(
            lambda: client.get(f"{path}/swarms/far")["state"] == "finished",
            LIMIT,
            say="it is not finished",
        )
        found = client.get(f"{path}/swarms/far")
        assert [one["state"] for one in found["attempts"]] == ["done"] * 2, found
        eventually(lambda: made(client, path) == "1\n", LIMIT, say="the best was not adopted")
        # whoever has the whole store of a server drives its swarms itself, where it likes
        with open_hub(server.url) as hub:
            result = hub.session("remote").swarm("echo $ORTET_ATTEMPT", n=2, on="ray")
            assert (states(result), result.kept) == (["done"] * 2, [1])
    finally:
        server.kill()


@pytest.mark.slow
def test_a_node_and_then_the_head_are_killed_in_the_middle(
    mortal: RayCluster, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", mortal.address)
    kill_a_node(mortal, hub, tmp_path)
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "1")
    kill_the_head(mortal, tmp_path)


def kill_a_node(cluster: RayCluster, hub: Hub, tmp_path: Path) -> None:
    """What it had begun is made elsewhere, as the same attempts; none has two results."""
    marks = tmp_path / "marks"
    doomed = cluster.add(env={"XDG_CACHE_HOME": str(tmp_path / "doomed")})
    session = hub.session("storm")
    session.note("marks", str(marks))

    def begun() -> list[list[str]]:
        return [line.split() for line in lines(marks) if "doomed" in line]

    def strike() -> None:
        eventually(lambda: len(begun()) > 0, LIMIT, say="nothing began on the node")
        doomed.kill()

    storm = threading.Thread(target=strike)
    storm.start()
    result = session.swarm(sink, n=6, parallel=6, harvest=True, on="ray")
    storm.join()
    lost = {int(words[1]) for words in begun()}
    assert states(result) == ["done"] * 6, result.attempts
    assert [one.score for one in result.attempts] == [0, 1, 2, 3, 4, 5]
    assert {one.i for one in result.attempts if one.tries > 1} >= lost
    done = [line for line in lines(marks) if line.startswith("done")]
    assert sorted(done) == [f"done {i}" for i in range(6)]
    facts = sorted(fact.text.split(" on ")[0] for fact in session.facts())
    assert facts == [f"learned by {i}" for i in range(6)]
    assert not any("doomed" in fact.text for fact in session.facts())
    assert [row.name for row in hub.sessions()] == ["storm"]
    eventually(
        lambda: not [x for x in begun() if os.path.exists(f"/proc/{x[3]}")],
        LIMIT,
        say="it outlived it",
    )
    hub.verify()


def kill_the_head(cluster: RayCluster, tmp_path: Path) -> None:
    """A node and a client are told so, and not left waiting; what had begun is made here, as the
    same attempt."""
    places = {"node": "ray", "client": cluster.url}
    told: dict[str, Unavailable] = {}

    def drive(name: str) -> None:
        with open_hub(tmp_path / "store") as hub:
            session = hub.session(name)
            session.note("marks", str(tmp_path / name))
            with pytest.raises(Unavailable) as refused:
                session.swarm(stall, n=1, name="on", on=places[name])
            told[name] = refused.value

    drivers = [threading.Thread(target=drive, args=[name]) for name in places]
    for driver in drivers:
        driver.start()
    eventually(
        lambda: all(lines(tmp_path / name) for name in places), LIMIT, say="they have not begun"
    )
    cluster.kill_head()
    for driver in drivers:
        driver.join()
    assert {name: error.kind for name, error in told.items()} == dict.fromkeys(places, "no_cluster")
    assert all("again with its name" in str(error) for error in told.values())
    with open_hub(tmp_path / "store") as hub:
        sessions = {name: hub.session(name) for name in places}
        with pytest.raises(Unavailable, match=r"no Ray cluster answers at .*nobody within 2 s"):
            sessions["node"].swarm(stall, n=1, name="on", on="ray")
        for session in sessions.values():
            result = session.swarm(stall, n=1, name="on")
            assert (states(result), result.winners[0].score) == (["done"], 7)
        assert sorted(row.name for row in hub.sessions()) == sorted(places)


def test_a_job_that_is_begun_twice_has_one_result(tmp_path: Path) -> None:
    """Whatever Ray repeats: who comes second finds the attempt taken."""
    with open_hub(tmp_path / "store") as hub:
        session = hub.session("twice")
        point = session.commit("point")
        lease = hub.catalog.acquire("swarm:twice", "us", 10**12)
        terms = SwarmTerms(n=1, keep=KeepRule(), task="", score="")
        row = SwarmRow(
            hub.store.new_id(), "two", bytes.fromhex(point.oid), hub.clock.now_ns(), terms
        )
        book = SwarmRecords(
            hub.catalog, session.id, create_swarm(hub.catalog, session.id, row, lease).id
        )
        work = pack_task("echo 7", "task", is_remote=True)
        told = {
            **worker_config(open_hub, work, None),
            **ray_worker_config(hub, RayClusterSpec("auto", {"cpu": 1}), None),
        }
        job = AttemptJob(
            root=hub.url,
            session=session.id,
            swarm=row.id,
            name="two",
            point=point.oid,
            i=0,
            version=book.attempt(0).version,
            tail="two-0",
            mark="twice-is-nice",
            slot=0,
            scored=True,
        )
        assert ray_node.check_node(told) == {}
        said = [ray_node.run_job(told, msgspec.to_builtins(job)) for _ in range(2)]
        found = book.attempt(0)
        assert (found.state, found.score, len(found.forks)) == ("done", 7, 1)
        assert said[1]["why"] == "lost"
        assert ray_node.check_node({**told, "version": "0"})["kind"] == "other_version"
        assert ray_node.check_node({**told, "host": "another"})["kind"] == "store_elsewhere"
        assert (
            ray_node.check_node({**told, "root": str(tmp_path / "none")})["kind"]
            == "no_store_there"
        )
        assert ray_node.run_job({**told, "host": "another"}, {})["why"] == "error"
    ray_node.close_workers()


def test_bad_cluster_options_are_refused_before_a_swarm_is_made(
    tmp_path: Path, monkeypatch: Any
) -> None:
    with open_hub(tmp_path / "store") as hub:
        session = hub.session("no")
        for wrong in ({"on": "cloud"}, {"on": "ray://"}, {"on": 1}, {"needs": {"cpu": 1}}):
            with pytest.raises(Invalid):
                session.swarm("true", **wrong)
        wants: list[Any] = [{"cpu": -1}, {"cpu": "2"}, {"": 1}, [1]]
        for needs in wants:
            with pytest.raises(Invalid):
                session.swarm("true", on="ray", needs=needs)
        with pytest.raises(Invalid, match="cannot be sent"):
            session.swarm(lambda s, i: hub, on="ray")
        monkeypatch.setattr("ortet.swarm.workers.placement.find_spec", lambda name: None)
        with pytest.raises(Unsupported, match=r'pip install "ortet\[ray\]"'):
            session.swarm("true", on="ray")
        assert hub.swarms.all(session) == []

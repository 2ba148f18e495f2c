"""Python kernels over HTTP: they stay between requests, fork, and can be interrupted."""

from __future__ import annotations

from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.waiting import eventually

if TYPE_CHECKING:
    from tests.fixtures.http_server import Client

live = pytest.mark.criu
engines = pytest.mark.parametrize("engine", ["overlay", pytest.param("criu", marks=live)])


def run(client: Client, path: str, code: str, name: str = "main", **more: Any) -> Any:
    return client.post(f"{path}/kernels/{name}/run", {"code": code, **more})


@engines
def test_kernel_keeps_its_variables_between_requests(client: Client, engine: str) -> None:
    path = client.new(f"stays-{engine}", engine=engine)
    assert client.get(f"{path}/kernels") == {"items": [], "next": None}
    run(client, path, "x = 41", why="to count on")
    found = run(client, path, "print('said'); {'x': x + 1, 'list': (1, None)}")
    assert found["value"] == {"x": 42, "list": [1, None]}
    assert (found["stdout"], found["error"], found["timed_out"]) == ("said\n", None, False)
    odd = run(client, path, "object")
    assert (odd["value"], odd["repr"]) == (None, "<class 'object'>")
    failed = run(client, path, "def f():\n    return 1 / 0\nf()")["error"]
    assert failed["type"] == "ZeroDivisionError"
    assert [one["function"] for one in failed["frames"]][-1] == "f"
    assert "return 1 / 0" in failed["text"]
    assert run(client, path, "x")["value"] == 41
    kernels = client.get(f"{path}/kernels")["items"]
    assert kernels == [{"name": "main", "fork": False, "keeping": []}]
    events = client.get(f"{path}/events")["items"]
    assert [one for one in events if one["data"].get("why") == "to count on"]
    client.delete(f"{path}/kernels/main")
    assert client.get(f"{path}/kernels")["items"] == []
    assert run(client, path, "'x' in globals()")["value"] is False


@engines
def test_kernel_forks_run_separately_and_one_is_kept(client: Client, engine: str) -> None:
    path = client.new(f"forks-{engine}", engine=engine)
    run(client, path, "x = 1; open('file', 'w').write('base')")
    forks = client.post(f"{path}/kernels/main/fork", {"n": 3})["forks"]
    names = [one["name"] for one in forks]
    assert names == ["main/1", "main/2", "main/3"]
    for n, name in enumerate(names):
        at = name.replace("/", "%2F")
        run(client, path, f"x += {n}; open('file', 'w').write('fork {n}')", at)
    values = [run(client, path, "[x, open('file').read()]", n.replace("/", "%2F")) for n in names]
    assert [one["value"] for one in values] == [[1, "fork 0"], [2, "fork 1"], [3, "fork 2"]]
    assert run(client, path, "[x, open('file').read()]")["value"] == [1, "base"]
    client.delete(f"{path}/kernels/main%2F1")
    kept = client.post(f"{path}/kernels/main/keep", {"fork": "main/3"})
    assert (kept["name"], kept["fork"]) == ("main", False)
    assert run(client, path, "[x, open('file').read()]")["value"] == [3, "fork 2"]
    assert client.ask("GET", f"{path}/files/file").body == b"fork 2"
    assert [one["name"] for one in client.get(f"{path}/kernels")["items"]] == ["main", "main/2"]
    gone = client.ask("POST", f"{path}/kernels/main%2F3/run", {"code": "1"})
    assert (gone.status, gone.kind) == (404, "no_kernel")


@engines
def test_running_cell_is_interrupted(client: Client, engine: str) -> None:
    path = client.new(f"busy-{engine}", engine=engine)
    run(client, path, "before = 1")
    with ThreadPoolExecutor(1) as pool:
        code = "import time\nopen('begun', 'w').close()\nwhile True: time.sleep(0.01)"
        running = pool.submit(run, client, path, code)
        eventually(lambda: "begun" in client.get(f"{path}/files")["names"])
        assert [one["name"] for one in client.get(f"{path}/kernels")["items"]] == ["main"]

        def has_ended() -> bool:
            """Interrupt once more: a signal that comes before the loop has begun is lost."""
            client.post(f"{path}/kernels/main/interrupt")
            return bool(futures.wait([running], 0.05).done)

        eventually(has_ended)
        assert running.result()["error"]["type"] == "KeyboardInterrupt"
    late = run(client, path, "while True: pass", timeout=0.2)
    assert late["timed_out"]
    assert run(client, path, "before")["value"] == 1


def test_declared_kernel_variables_are_restored(client: Client) -> None:
    path = client.new("kept", engine="overlay")
    run(client, path, "table = {'a': [1, 2]}; n = 7", keep=["table"])
    declared = client.post(f"{path}/kernels/main/vars", {"names": ["n"]})["variables"]
    assert [one["name"] for one in declared] == ["table", "n"]
    commit = client.post(f"{path}/commits", {"message": "with variables"})
    run(client, path, "table, n = None, 0")
    client.post(f"{path}/restore", {"ref": commit["oid"]})
    assert run(client, path, "[table, n]")["value"] == [{"a": [1, 2]}, 7]


def test_verbs_on_an_unknown_kernel_are_404(client: Client) -> None:
    path = client.new("none", engine="overlay")
    for method, where, body in (
        ("POST", "kernels/x/interrupt", {}),
        ("POST", "kernels/x/fork", {}),
        ("POST", "kernels/x/keep", {"fork": "y"}),
        ("POST", "kernels/x%2F1/run", {"code": "1"}),
        ("DELETE", "kernels/x", None),
    ):
        reply = client.ask(method, f"{path}/{where}", body)
        assert (reply.status, reply.kind) == (404, "no_kernel"), where
    wrong = client.ask("POST", f"{path}/kernels/x/run", {"code": "1", "keep": ["no name"]})
    assert (wrong.status, wrong.kind) == (422, "bad_name")

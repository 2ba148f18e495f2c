"""The server as a process: its start and end, other processes, and clients that misbehave."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.fixtures.mcp_project import WAYS, Agent, Project, drive, is_free, running
from tests.fixtures.waiting import WAIT, aeventually, eventually
from tests.mcp_server.wire import Wire


def test_standard_output_contains_only_the_protocol(project: Project) -> None:
    with Wire(project) as wire:
        wire.greet()
        ran = wire.call("run", command="echo to-stdout; echo to-stderr >&2")
        assert ran.data["stdout"] == "to-stdout\n"
        wire.write(b"this is no JSON\n")
        wire.write(b'{"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": 5}\n')
        assert wire.ask("no/such/method")["error"]["code"] == -32601
        assert not wire.call("status").failed


def test_end_of_input_ends_the_server(project: Project) -> None:
    with Wire(project) as wire:
        wire.greet()
        wire.call("think", text="begin")
        assert wire.process.stdin is not None
        wire.process.stdin.close()
        assert wire.process.wait() == 0
    assert wire.errors == b""
    is_free(project)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_the_server_and_frees_the_session(
    project: Project, number: signal.Signals
) -> None:
    with Wire(project) as wire:
        wire.greet()
        wire.call("think", text="begin")
        wire.process.send_signal(number)
        assert wire.process.wait() == 128 + number
    assert b"Traceback" not in wire.errors
    is_free(project)


@pytest.mark.parametrize("end", ["eof", "term"])
def test_the_server_kills_its_command_when_it_ends(project: Project, end: str) -> None:
    with Wire(project) as wire:
        wire.greet()
        wire.send(
            "tools/call", {"name": "run", "arguments": {"command": "echo $$ > ../pid; sleep 1000"}}
        )
        pid = running(project.path.parent / "pid")
        if end == "eof":
            assert wire.process.stdin is not None
            wire.process.stdin.close()
        else:
            wire.process.send_signal(signal.SIGTERM)
        wire.process.wait()
    assert not Path(f"/proc/{pid}").exists()
    is_free(project)
    assert "outcome not known" not in project.ortet("session", "show", "proj")


def test_a_cancelled_call_kills_its_command(project: Project) -> None:
    async def work() -> None:
        async with project.agent() as agent:
            with anyio.move_on_after(WAIT) as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(lambda: agent("run", command="echo $$ > ../pid; sleep 1000"))
                    pid = await anyio.to_thread.run_sync(running, project.path.parent / "pid")
                    tasks.cancel_scope.cancel()
            assert not scope.cancelled_caught
            (deed,) = (await agent.ok("effects"))["effects"]  # which waits until it has ended
            assert deed["state"] == "done" and not Path(f"/proc/{pid}").exists()

    drive(work)


def test_command_output_is_reported_as_progress(project: Project) -> None:
    heard: list[str | None] = []
    go = project.path.parent / "go"

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)
        go.touch()

    async def work() -> None:
        async with project.agent() as agent:
            wait = "until [ -e ../go ]; do sleep 0.05; done; sleep 0.5"  # not all is passed on
            words = {"command": f"echo first; {wait}; echo second"}
            await agent.client.call_tool("run", words, progress_callback=hear)

    drive(work)
    assert heard == ["first", "second"]


@pytest.mark.parametrize("way", WAYS)
def test_concurrent_clients_and_hooks_record_every_message_once(project: Project, way: str) -> None:
    """All that is said is there in the end, said once, and the chain of events is whole."""
    project.ortet("init")
    said = [f"{who} {number}" for who in "abu" for number in range(5)]

    async def work() -> None:
        async with project.agent(way=way) as one, project.agent(way=way) as other:

            async def talk(agent: Agent, who: str) -> None:
                for number in range(5):
                    await insist(agent, "say", role="user", content=f"{who} {number}")
                    await insist(agent, "commit", message=f"{who} {number}")

            def is_taken(text: str) -> bool:
                told = project.ortet("hook", stdin=text)
                assert not told or "open in process" in told, told
                return not told

            def user() -> None:
                for number in range(5):
                    eventually(lambda: is_taken(prompt(f"u {number}")))  # noqa: B023

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(talk, one, "a")
                tasks.start_soon(talk, other, "b")
                await anyio.to_thread.run_sync(user)
            messages = (await one.ok("context", tokens=5000))["messages"]
            assert sorted(message["content"] for message in messages) == said

    drive(work)
    assert "sound" in project.ortet("audit", "proj")
    assert "sound" in project.ortet("verify")


async def insist(agent: Agent, tool: str, /, **arguments: Any) -> None:
    """On a slow host the others may have the session for longer than it is asked for: then it is
    said so, nothing was done, and who wants it asks again."""

    async def is_done() -> bool:
        found = await agent(tool, **arguments)
        assert not found.failed or found.kind == "lease_held", found.text
        return not found.failed

    await aeventually(is_done)


def prompt(text: str) -> str:
    return json.dumps({"hook_event_name": "UserPromptSubmit", "prompt": text})


@pytest.mark.slow
def test_write_to_a_session_open_elsewhere_is_refused_and_reads_succeed(project: Project) -> None:
    """It is asked for again for a moment, then refused in words; reading goes on."""
    project.ortet("init")
    project.ortet("hook", stdin=prompt("begin"))
    script = (
        "import ortet, sys\ns = ortet.open().session('proj')\nprint('open')\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-uc", script],
        cwd=project.path,
        env=project.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == b"open\n"
        try:
            with Wire(project) as wire:
                wire.greet()
                refused = wire.call("say", role="user", content="hello")
                assert refused.kind == "lease_held" and str(holder.pid) in refused.text
                assert not wire.call("brief").failed and not wire.call("status").failed
                holder.stdin.close()
                holder.wait()
                assert not wire.call("say", role="user", content="hello").failed
        finally:
            holder.kill()


@pytest.mark.parametrize(
    ("tool", "point"),
    [
        ("commit", "commit.before-flush"),
        ("commit", "commit.after-flush"),
        ("commit", "commit.after-move"),
        ("rewind", "restore.before-thaw"),
        ("rewind", "restore.after-thaw"),
        ("rewind", "restore.after-move"),
    ],
)
def test_server_killed_during_commit_or_rewind_leaves_before_or_after_state(
    project: Project, tool: str, point: str
) -> None:
    """Mind and files are those of before or of after, and the next server goes on at once."""
    with Wire(project) as wire:
        wire.greet()
        for text in ("one", "two"):
            project.write("a.txt", text)
            wire.call("say", role="user", content=text)
            assert not wire.call("commit", message=text).failed
    project.write("a.txt", "three")
    project.env["ORTET_FAULT"] = f"{point}:kill"
    with Wire(project, "--allow-destructive") as wire:
        wire.greet()
        wire.send("tools/call", {"name": tool, "arguments": {}})
        assert wire.process.wait() == -signal.SIGKILL
    del project.env["ORTET_FAULT"]
    assert "sound" in project.ortet("verify")
    with Wire(project) as wire:
        wire.greet()
        assert not wire.call("commit", message="after").failed
        told = [one["content"] for one in wire.call("context").data["messages"]]
        text = (project.path / "a.txt").read_text()
        assert (text, told) in (("three", ["one", "two"]), ("one", ["one"]))
        assert wire.call("status").data["clean"]


def test_home_directory_is_refused_as_workspace(project: Project) -> None:
    project.env["HOME"] = str(project.path)
    with Wire(project) as wire:
        wire.greet()
        refused = wire.call("commit", message="all of it")
        assert refused.kind == "no_workspace" and "-C DIR" in refused.text
    assert not (project.home / "data").exists()


def test_session_option_names_the_session_of_the_directory(project: Project) -> None:
    with Wire(project, "--session", "fix-42", "--agent", "ann") as wire:
        wire.greet()
        assert "begins 'fix-42'" in wire.call("status").text
        wire.call("think", text="begin")
        status = wire.call("status").data
        assert (status["name"], status["agent"]) == ("fix-42", "ann")
        assert status["directory"] == str(project.path)
    with Wire(project) as wire:  # without a name: that of the directory
        wire.greet()
        assert wire.call("status").data["name"] == "fix-42"


def test_next_server_continues_the_session_of_the_directory(project: Project) -> None:
    """With the session of the directory, whatever forks of it there are."""
    with Wire(project) as wire:
        wire.greet()
        wire.call("think", text="begin")
    for _ in range(2):
        with Wire(project) as wire:
            wire.greet()
            assert wire.call("status").data["name"] == "proj"
            assert not wire.call("fork", n=2).failed
            assert not wire.call("say", role="user", content="on").failed
    project.ortet("finish", "proj")
    with Wire(project) as wire:
        wire.greet()
        assert wire.call("say", role="user", content="on").kind == "session_closed"
        assert "on" in wire.call("brief").text


def test_session_name_taken_by_another_directory_gets_a_number(project: Project) -> None:
    with Wire(project) as wire:
        wire.greet()
        wire.call("think", text="begin")
    other = project.path.parent / "else" / "proj"
    other.mkdir(parents=True)
    project.path = other
    with Wire(project) as wire:
        wire.greet()
        wire.call("think", text="begin")
        assert wire.call("status").data["name"] == "proj-2"

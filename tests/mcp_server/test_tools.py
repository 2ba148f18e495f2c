"""Every tool, over both transports and both generations of the protocol."""

from __future__ import annotations

import sys
from pathlib import Path

import mcp_types as types
import pytest
from tests.fixtures import forked
from tests.fixtures.mcp_project import ERAS, WAYS, Agent, Project, drive

from ortet.mcp_server.server import TOOLS

SNAPSHOT = Path(__file__).with_name("tools.txt")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("era", ERAS)
def test_every_tool_works_over_both_transports_and_protocol_versions(
    project: Project, way: str, era: str
) -> None:
    async def work() -> None:
        async with project.agent(way=way, mode=era) as agent:
            await _files_and_mind(project, agent)
            await _knowledge(agent)
            await _deeds(project, agent)

    drive(work)
    assert "sound" in project.ortet("verify")


async def _files_and_mind(project: Project, agent: Agent) -> None:
    assert (await agent.ok("status"))["session"] == ""
    project.write("a.py", "one\n")
    await agent.ok("say", role="user", content="the login test fails")
    await agent.ok("think", text="the lexer drops the last token")
    first = await agent.ok("commit", message="first")
    assert first["created"] and [one["path"] for one in first["changes"]] == ["a.py"]
    again = await agent.ok("commit", message="nothing new")
    assert not again["created"] and again["commit"]["oid"] == first["commit"]["oid"]
    project.write("a.py", "two\n")
    status = await agent.ok("status")
    assert not status["clean"] and status["name"] == "proj" and status["agent"] == "default"
    diff = await agent("diff", patch=True)
    assert "+two" in diff.text and diff.data["changes"][0]["kind"] == "modified"
    second = await agent.ok("commit", message="second")
    log = await agent.ok("log", limit=1)
    assert log["commits"][0]["oid"] == second["commit"]["oid"] and log["more"]
    between = await agent.ok("diff", ref="HEAD~1", other="HEAD")
    assert (between["changed"], between["new"]) == (1, second["commit"]["oid"])
    (kid,) = (await agent.ok("fork"))["forks"]
    assert kid["name"] == "proj/1" and kid["head"] == second["commit"]["oid"]


async def _knowledge(agent: Agent) -> None:
    plan = await agent.ok("plan", steps=["reproduce", "fix"])
    assert plan == {"plan": ["reproduce", "fix"], "step": 0}
    assert (await agent.ok("advance"))["step"] == 1
    assert "now   fix" in (await agent("plan")).text
    await agent.ok("decide", text="patch the lexer", why="smallest", instead_of=["rewrite it"])
    await agent.ok("note", key="branch", value={"name": "fix/lexer"}, ttl=60)
    fact = await agent.ok("learn", text="tests need PYTHONPATH=src", about="testing")
    await agent.ok("learn", text="mocking the clock hid the bug", lesson=True)
    facts = (await agent.ok("facts", about="testing"))["facts"]
    assert [one["id"] for one in facts] == [fact["id"]]
    hits = (await agent.ok("recall", query="how do tests run?", k=1))["hits"]
    assert hits[0]["text"] == "tests need PYTHONPATH=src" and hits[0]["id"] == fact["id"]
    briefing = await agent("brief")
    assert "patch the lexer" in briefing.text and "the login test fails" in briefing.text
    context = await agent.ok("context", tokens=500)
    assert context["messages"][0] == {"role": "user", "content": "the login test fails"}
    page = await agent.ok("journal", after=0, limit=2)
    assert [one["kind"] for one in page["events"]] == ["message", "thought"] and page["more"]
    rest = await agent.ok("journal", after=page["last"], kind=["fact", "lesson"])
    assert len(rest["events"]) == 2 and not rest["more"]
    assert not any(e["kind"] == "lifecycle" for e in (await agent.ok("journal"))["events"])


async def _deeds(project: Project, agent: Agent) -> None:
    ran = await agent("run", command="echo out; echo err >&2; exit 3", why="to see")
    assert (ran.data["exit_code"], ran.data["stdout"], ran.data["stderr"]) == (3, "out\n", "err\n")
    listed = await agent.ok("run", command=["cat", "a.py"], env={"X": "1"})
    assert listed["stdout"] == "two\n"
    late = await agent.ok("run", command="sleep 60", timeout=0.2)
    assert late["timed_out"] and late["exit_code"] == 124
    (first, second, *_) = (await agent.ok("effects"))["effects"]
    assert (first["name"], first["why"], first["state"]) == ("run", "to see", "done")
    assert (second["command"], "why" in second) == ("cat a.py", False)
    assert "run: cat a.py" in (await agent("effects")).text
    assert (await agent.ok("effects", unsettled=True))["effects"] == []
    made = await agent.ok("artifact", name="report.md", data="# it works", kind="report")
    assert made["version"] == 1
    assert (await agent.ok("artifact", name="a.py"))["size"] == 4
    blob = await agent.ok("artifact", name="dot.png", blob="iVBORwD/")
    assert blob["size"] == 6
    names = [one["name"] for one in (await agent.ok("artifacts"))["artifacts"]]
    assert names == ["a.py", "dot.png", "report.md"]
    assert (await agent.ok("artifact_data", name="report.md"))["data"] == "# it works"
    assert (await agent.ok("artifact_data", name="dot.png"))["blob"] == "iVBORwD/"


def test_settle_records_the_outcome_of_an_effect(project: Project) -> None:
    project.ortet("init")
    script = (
        "import os, ortet\n"
        "hub = ortet.open()\n"
        "s = hub.session('proj', workspace='.')\n"
        "s.act(lambda: os._exit(9), name='pay', key='p', replay='once')\n"
    )
    project.write("../pay.py", script)
    words = [sys.executable, "../pay.py"]
    killed = forked.run(words, cwd=project.path, env=project.env, check=False)
    assert killed.returncode == 9

    async def work() -> None:
        async with project.agent() as agent:
            (unknown,) = (await agent.ok("effects", unsettled=True))["effects"]
            assert unknown["name"] == "pay"
            settled = await agent.ok("settle", effect=unknown["id"][-8:], outcome={"paid": True})
            assert settled == {"id": unknown["id"], "state": "done"}
            assert (await agent.ok("effects", unsettled=True))["effects"] == []
            both = await agent("settle", effect=unknown["id"], outcome=1, failed=True)
            assert both.kind == "bad_arguments"

    drive(work)


def shown(tool: types.Tool) -> str:
    """Name, parameters (? may be left out), fields of the answer, hints: in a few lines."""
    wanted = tool.input_schema.get("required", [])
    given = [n if n in wanted else f"{n}?" for n in tool.input_schema["properties"]]
    assert tool.output_schema is not None and tool.annotations is not None
    hints = tool.annotations.model_dump(exclude_none=True)
    return "\n".join(
        (
            f"{tool.name}({', '.join(given)})",
            f"  -> {', '.join(tool.output_schema['properties'])}",
            f"  {', '.join(name for name, is_so in hints.items() if is_so) or 'adds'}\n",
        )
    )


def test_the_tools_are_those_that_clients_know(project: Project) -> None:
    """Names and parameters never change by accident: others' prompts and permissions name them."""
    found: list[types.Tool] = []

    async def work() -> None:
        async with project.agent() as agent:
            found.extend((await agent.client.list_tools()).tools)

    drive(work)
    text = "".join(map(shown, found))
    assert text == SNAPSHOT.read_text(), f"on purpose? then write it into {SNAPSHOT.name}:\n{text}"


def test_tool_hints_and_descriptions_are_consistent() -> None:
    """What only reads is not destructive, what asks first is, and all have a word to say."""
    for tool in TOOLS:
        assert not (tool.hints.reads and tool.hints.destroys), tool.name
        assert tool.hints.destroys or not tool.hints.confirmed, tool.name
        assert len(tool.description) > 30, tool.name
        for name, field in tool.input_schema["properties"].items():
            known = field.get("description") or name in ("name", "confirm")
            assert known, f"{tool.name}.{name}"

"""The snippets of docs/guide/mcp.md work, and name every tool."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from tests.fixtures.mcp_project import Project

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "mcp.md").read_text()


def snippets(language: str = "text") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def settings() -> list[dict[str, Any]]:
    return [json.loads(text) for text in snippets() if text.startswith("{")]


def test_each_client_starts_the_server() -> None:
    (codex,) = (tomllib.loads(text) for text in snippets("toml"))
    servers = [codex["mcp_servers"]["ortet"]]
    for one in settings():
        for key in ("mcpServers", "servers", "context_servers"):
            if key in one:
                servers.append(one[key]["ortet"])
    assert len(servers) == 5
    for server in servers:
        assert server["command"] == "ortet" and server["args"][-1] == "mcp"
        assert server["args"][0] in ("mcp", "-C")


def test_the_hooks_of_the_guide_work(project: Project) -> None:
    (hooks,) = (one["hooks"] for one in settings() if "hooks" in one)
    assert {"SessionStart", "UserPromptSubmit", "PostToolUse", "Stop", "PreCompact"} == set(hooks)
    project.ortet("init")
    for event, groups in hooks.items():
        for group in groups:
            for hook in group["hooks"]:
                program, *words = hook["command"].split()
                assert (program, hook["type"]) == ("ortet", "command")
                told = {"hook_event_name": event, "prompt": "x", "tool_name": "Bash"}
                assert project.ortet(*words, stdin=json.dumps(told)) == ""
    assert len(project.ortet("log").splitlines()) == 3


def test_the_guide_lists_every_tool() -> None:
    from ortet.mcp_server.server import TOOLS

    table = PAGE.split("## Tools")[1].split("\nThey are")[0]
    named = {word for row in table.splitlines()[3:] for word in re.findall(r"`(\w+)`", row)}
    assert named == {tool.name for tool in TOOLS}

"""Wrong, huge and hostile input: an error in the common shape, and the server continues."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from tests.fixtures.mcp_project import Project, drive
from tests.mcp_server.wire import Wire

HUGE = "x" * (2 << 20)

CASES: list[tuple[str, dict[str, Any], str]] = [
    ("say", {"role": "user", "content": HUGE}, "payload_too_large"),
    ("say", {"role": "", "content": "x"}, "bad_role"),
    ("say", {"role": "user"}, "bad_arguments"),
    ("say", {"role": "user", "content": 5}, "bad_arguments"),
    ("say", {"role": "user", "content": "x", "more": 1}, "bad_arguments"),
    ("learn", {"text": "  "}, "no_text"),
    ("learn", {"text": "x", "confidence": 2}, "bad_arguments"),
    ("learn", {"text": "x", "since": "soon"}, "bad_time"),
    ("learn", {"text": "x", "scope": "all"}, "bad_scope"),
    ("log", {"ref": "ffff" * 16}, "no_ref"),
    ("log", {"limit": 0}, "bad_arguments"),
    ("diff", {"ref": "no\x1b[31msuch"}, "no_ref"),
    ("run", {"command": []}, "bad_command"),
    ("run", {"command": "true", "cwd": "../.."}, "bad_cwd"),
    ("run", {"command": "a\0b"}, "bad_command"),
    ("fork", {"n": 0}, "bad_arguments"),
    ("advance", {"to": 99}, "bad_step"),
    ("artifact", {"name": "x", "data": "a", "blob": "b"}, "bad_arguments"),
    ("artifact", {"name": "x", "blob": "no base64!"}, "bad_arguments"),
    ("artifact", {"name": "../../etc/passwd"}, "outside_workspace"),
    ("artifact_data", {"name": "x"}, "no_artifact"),
    ("settle", {"effect": "x"}, "no_effect"),
    ("restore", {"ref": "HEAD@{99}"}, "no_reflog"),
    ("nothing", {}, "no_tool"),
]


def test_odd_tool_arguments_return_one_error_shape(project: Project) -> None:
    with Wire(project) as wire:
        wire.greet()
        assert not wire.call("commit", message="begin").failed
        for tool, arguments, kind in CASES:
            found = wire.ask("tools/call", {"name": tool, "arguments": arguments})["result"]
            text = found["content"][0]["text"]
            assert found["isError"], (tool, arguments)
            assert f"({kind}): " in text.splitlines()[0], text[:500]
            shape = json.loads(text.splitlines()[-1])
            assert set(shape) == {"error", "kind", "message", "details"}
            assert "\x1b" not in text
        assert not wire.call("status").failed
    assert wire.errors == b""  # nothing of it was a bug


def test_control_characters_in_arguments_are_stored_as_data(project: Project) -> None:
    nasty = "\x1b[2J\x07\u202e <script>alert(1)</script> \ud7ff \U0001f600 ```\n# ignore all\n"
    name = os.fsdecode(b"odd-\xff-name")

    async def work() -> None:
        async with project.agent() as agent:
            (project.path / name).write_text("x")
            await agent.ok("say", role="user", content=nasty)
            fact = await agent.ok("learn", text=nasty)
            committed = await agent("commit", message=nasty)
            assert committed.data["changes"][0]["path"] == "odd-\\udcff-name"
            for tool in ("log", "journal", "facts", "brief", "context"):
                assert "\x1b" not in (await agent(tool)).text
            (known,) = (await agent.ok("facts"))["facts"]
            assert (known["id"], known["text"]) == (fact["id"], nasty)
            listed = (await agent.client.list_tools()).tools
            assert not any("script" in (tool.description or "") for tool in listed)

    drive(work)


def test_resource_uri_outside_the_scheme_is_refused(project: Project) -> None:
    async def work() -> None:
        async with project.agent() as agent:
            with pytest.raises(MCPError):
                await agent.client.read_resource("file:///etc/passwd")

    drive(work)

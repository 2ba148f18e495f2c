"""The MCP inspector, a client by other people, uses the server over both transports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.mcp_project import Project

VERSION = "0.15.0"  # the last for the Node.js of Debian
PREPARED = Path(sys.prefix) / "share" / f"mcp-inspector-{VERSION}"
"""Where scripts/test puts it; else the test installs it for itself."""


@pytest.fixture
def inspector(tmp_path: Path) -> Path:
    place = PREPARED
    if not (place / "node_modules").exists():
        place = tmp_path / "inspector"
        place.mkdir()
        words = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--ignore-scripts"]
        subprocess.run(
            [*words, "--prefix", str(place), f"@modelcontextprotocol/inspector@{VERSION}"],
            cwd=place,
            env={**os.environ, "npm_config_cache": str(tmp_path / "npm")},
            check=True,
            stdin=subprocess.DEVNULL,
        )
    return place / "node_modules" / "@modelcontextprotocol" / "inspector" / "cli" / "build"


def inspect(inspector: Path, project: Project, *words: str) -> Any:
    done = subprocess.run(
        ["node", str(inspector / "cli.js"), "--cli", *words],
        cwd=project.path,
        env=project.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_mcp_inspector_lists_and_calls_tools_over_both_transports(
    project: Project, inspector: Path
) -> None:
    by_stdio = (sys.executable, "-m", "ortet", "mcp")
    with project.listening() as served:
        by_http = (served.url, "--transport", "http")
        for where in (by_stdio, by_http):
            tools = inspect(inspector, project, *where, "--method", "tools/list")["tools"]
            assert {"status", "commit", "restore", "recall"} <= {tool["name"] for tool in tools}
            call = ("--method", "tools/call", "--tool-name", "learn", "--tool-arg", "text=seen")
            learned = inspect(inspector, project, *where, *call)
            assert learned["structuredContent"]["kind"] == "fact" and not learned.get("isError")
            read = ("--method", "resources/read", "--uri", "ortet://briefing")
            (briefing,) = inspect(inspector, project, *where, *read)["contents"]
            assert "seen" in briefing["text"]

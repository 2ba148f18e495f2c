"""Imports: only the server imports the SDK, and only the first call imports the core."""

from __future__ import annotations

import subprocess
import sys

from tests.fixtures.mcp_project import Project


def loaded(project: Project, code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project.path,
        env=project.env,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_only_the_server_imports_the_mcp_sdk(project: Project) -> None:
    theirs = {"mcp", "mcp_types", "pydantic", "starlette", "anyio", "uvicorn"}
    assert not theirs & loaded(project, "import ortet, ortet.cli.main")
    assert not theirs & loaded(
        project, "from ortet.cli.commands import mcp, hook; from ortet.mcp_server import hooks"
    )
    tools = "conversation, effects, history, memory, navigation, workspace"
    assert not theirs & loaded(
        project,
        f"from ortet.mcp_server.tools import {tools}; from ortet.mcp_server import resources",
    )


def test_transports_import_does_not_load_the_database(project: Project) -> None:
    """A client waits for the first answer, and the database can be loaded behind it."""
    script = "from ortet.mcp_server import transports"
    assert not {"apsw", "blake3"} & loaded(project, script)


def test_without_the_package_it_says_how_to_get_it(project: Project) -> None:
    (project.home / "mcp_types.py").write_text(
        "raise ModuleNotFoundError('gone', name='mcp_types')"
    )
    path = project.env.get("PYTHONPATH", "")
    project.env["PYTHONPATH"] = f"{project.home}:{path}"
    done = subprocess.run(
        [sys.executable, "-m", "ortet", "mcp"],
        cwd=project.path,
        env=project.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 9
    assert "pip install 'ortet[mcp]'" in done.stderr

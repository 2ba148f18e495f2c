"""A project with an MCP server."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.mcp_project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A workspace with a home of its own; its methods start the server and clients."""
    return Project(tmp_path)

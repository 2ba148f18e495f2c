"""A session in a directory, for swarms."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortet.hub.hub import Hub
from ortet.sessions.session import Session


@pytest.fixture
def mind(hub: Hub) -> Session:
    """Without files: the fastest."""
    session = hub.session("mind", goal="try")
    session.say("user", "go on")
    return session


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A directory with the one file that the tasks of tests/swarm/tasks.py change."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "all").write_text("before\n")
    return place


@pytest.fixture(params=["folder", "overlay"])
def files(hub: Hub, work: Path, request: pytest.FixtureRequest) -> Session:
    """In place, with forks of either engine."""
    session = hub.session("files", workspace=work)
    row = session.machine.row
    from msgspec.structs import replace

    from ortet._util.codec import encode

    hub.catalog.put_row("workspace", row.name, encode(replace(row, forks=request.param)))
    return session

"""What may be asked of a live machine and its programs, and what is refused with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.waiting import WAIT
from tests.live.lives import keepers

import ortet
from ortet.errors import Invalid, Unavailable
from ortet.machines.jobs import Job
from ortet.machines.live.machine import LiveMachine
from ortet.workspaces.workspace import Workspace

pytestmark = [pytest.mark.criu, pytest.mark.files({})]


@pytest.mark.parametrize("name", ["", " ", "a/b", "a\nb", "\0", "\udcff", "x" * 101])
def test_an_invalid_program_name_is_refused(ws: Workspace, name: str) -> None:
    with pytest.raises(Invalid, match="cannot name a program"):
        ws.spawn(name, "true")


@pytest.mark.parametrize(
    "deed",
    [
        lambda job: job.read(0, math.nan),
        lambda job: job.read(0, "soon"),
        lambda job: job.write(b"x", wait=math.nan),
        lambda job: job.write(None),
        lambda job: job.wait(math.nan),
        lambda job: job.wait(-1),
        lambda job: job.signal(0),
        lambda job: job.signal(999),
        lambda job: job.signal("KILL"),
    ],
)
def test_invalid_job_arguments_are_refused_and_the_job_goes_on(
    ws: Workspace, deed: Callable[[Any], object]
) -> None:
    job = ws.spawn("cat", ["cat"], stdin=True)
    with pytest.raises(Invalid):
        deed(job)
    job.write("text\n")
    assert job.read(0, WAIT).data == b"text\n"


@pytest.mark.parametrize("at", [None, -1, 70_000, "80"])
def test_an_invalid_port_is_refused(ws: Workspace, at: Any) -> None:
    with pytest.raises(Invalid, match="no port"):
        ws.programs.expose(80, at=at)


def test_a_program_argument_that_is_not_utf8_does_not_prevent_commits(ws: Workspace) -> None:
    job: Job = ws.spawn("odd", ["sh", "-c", "sleep 1000; :", "\udcff\n"])
    ws.commit("odd")
    (copy,) = ws.fork(1)
    assert copy.programs.job("odd").wait(0) is None
    job.kill()
    ws.commit("ended")


def test_an_environment_larger_than_the_system_limit_is_refused(ws: Workspace) -> None:
    with pytest.raises(Invalid, match="put it into a file") as caught:
        ws.run("true", env={f"V{n}": "x" * 100_000 for n in range(100)})
    assert caught.value.kind == "too_large"
    assert ws.run("echo on").stdout == "on\n"


def test_expose_on_a_dead_machine_reports_that_it_is_gone(ws: Workspace) -> None:
    machine = ws.files.machine
    assert isinstance(machine, LiveMachine)
    machine._live_process.close()
    with pytest.raises(Unavailable) as caught:
        ws.programs.expose(80)
    assert caught.value.kind == "machine_gone"


def test_a_closed_hub_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    hub = ortet.open(tmp_path / "store")
    ws = hub.workspace(tmp_path / "work", engine="criu")
    ws.spawn("goes", "sleep 1000")
    assert [*keepers(tmp_path)]
    hub.close()
    assert not [*keepers(tmp_path)]
    assert ws.name  # which lives on here: it is not the collector that ended it

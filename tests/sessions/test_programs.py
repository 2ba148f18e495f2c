"""Programs that go on in machines of engines that do not carry processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.waiting import WAIT

from ortet.errors import Conflict, Unsupported
from ortet.hub.hub import Hub
from ortet.workspaces.workspace import Workspace

pytestmark = [pytest.mark.overlay, pytest.mark.files({"file": "one\n"})]

_COUNT = "i=0; while sleep 0.02; do i=$((i+1)); echo $i > count; done"


@pytest.fixture
def ws(hub: Hub, work: Path) -> Workspace:
    """A workspace with the overlay engine."""
    return hub.workspace(work, engine="overlay")


def counting(workspace: Workspace) -> bool:
    """Waits until the counter goes on."""
    wait = 'was=$(cat count); until now=$(cat count); [ $now ] && [ $now != "$was" ]; do :; done'
    return workspace.run(["bash", "-c", wait], timeout=WAIT).exit_code == 0


class TestOverlay:
    def test_a_service_goes_on_between_commands(self, ws: Workspace) -> None:
        ws.spawn("count", _COUNT)
        assert counting(ws)
        assert [(job.name, job.code) for job in ws.programs.jobs()] == [("count", None)]
        assert any(_COUNT in process.cmdline for process in ws.programs.ps())
        ws.programs.job("count").kill()
        assert ws.programs.job("count").wait(WAIT) == 137

    def test_shell_keeps_its_variables_between_writes(self, ws: Workspace) -> None:
        shell = ws.shell("main", command=["bash", "--norc", "--noprofile", "-i"])
        shell.write(b"answer=42\n")
        ws.shell("main").write(b"echo it-is-$answer\n")
        seen, cursor = b"", 0
        while b"it-is-42" not in seen:
            piece = shell.read(cursor, WAIT)
            assert piece.data, seen
            seen, cursor = seen + piece.data, piece.cursor

    def test_overlay_commit_reports_a_running_process_as_a_loss(self, ws: Workspace) -> None:
        ws.spawn("count", _COUNT)
        assert counting(ws)
        ws.commit("running")
        assert [(loss.path, loss.what) for loss in ws.losses] == [("count", "process")]
        assert counting(ws)

    def test_overlay_program_ends_with_the_machine_and_restarts_only_on_request(
        self, ws: Workspace, hub: Hub, work: Path
    ) -> None:
        ws.spawn("count", _COUNT, cwd="")
        assert counting(ws)
        commit = ws.commit("running")
        ws.close()
        again = hub.workspace(work, engine="overlay")
        assert again.run("echo later > file").exit_code == 0
        plain = again.restore(commit.oid)
        assert [loss.path for loss in plain.losses] == ["count"]
        assert "restart=True" in plain.losses[0].why
        again.run("echo later > file")
        report = again.restore(commit.oid, restart=True)
        assert (report.started, report.losses) == (["count"], [])
        assert counting(again)

    def test_restarted_service_with_the_same_command_gives_the_same_commit(
        self, ws: Workspace
    ) -> None:
        ws.spawn("sleeper", "sleep 1000")
        first = ws.commit("running")
        ws.programs.job("sleeper").kill()
        ws.programs.job("sleeper").wait(WAIT)
        ws.spawn("sleeper", "sleep 1000")
        assert ws.commit("running again").oid == first.oid

    def test_spawn_with_the_name_of_a_running_program_is_refused(self, ws: Workspace) -> None:
        ws.spawn("one", "sleep 1000")
        with pytest.raises(Conflict) as caught:
            ws.spawn("one", "sleep 1000")
        assert caught.value.kind == "name_taken"

    def test_overlay_ports_are_host_ports_and_cannot_be_mapped(self, ws: Workspace) -> None:
        assert ws.programs.expose(3000) == 3000
        with pytest.raises(Conflict):
            ws.programs.expose(3000, at=3001)


def test_folder_engine_refuses_to_spawn_programs(hub: Hub, work: Path) -> None:
    with hub.workspace(work, engine="folder") as ws, pytest.raises(Unsupported) as caught:
        ws.spawn("one", "sleep 1")
    assert caught.value.kind == "no_processes"

"""Control groups: where they can be made, what is written there, and that none is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures import forked
from tests.fixtures.waiting import WAIT, eventually

import ortet
from ortet.errors import Invalid, Unsupported
from ortet.hub.hub import Hub
from ortet.machines.base import Result
from ortet.machines.cleanup import find_leftovers, remove_leftovers
from ortet.machines.limits import DEFAULT_MAX_PIDS, MachineLimits
from ortet.machines.live.cgroups import (
    CONTROLLERS,
    CgroupFactory,
    CgroupParent,
    MachineCgroup,
    find_cgroup_parents,
    probe_limits,
    recorded_groups,
    remove_recorded_groups,
)
from ortet.machines.live.criu.worker_pool import (
    ReservedCgroups,
    leftover_records,
    remove_leftover_groups,
)
from ortet.machines.live.machine import LiveMachine
from ortet.workspaces.workspace import Workspace

_ASKED = MachineLimits(memory=64 << 20, cpu=0.5, pids=100)

_LIMITED_MACHINES = [pytest.mark.criu, pytest.mark.files({})]

_BOMB = "bomb() { bomb | bomb & }; bomb; sleep 1000"
_MANY = """
import os, time
try:
    while os.fork():
        pass
except OSError:
    print("full", flush=True)
time.sleep(1000)
"""
_HOG = "x = []\nwhile True: x.append(bytearray(1 << 20))"


def mount(at: Path, kind: str, options: str, root: str = "/") -> bytes:
    return f"30 25 0:26 {root} {at} rw,nosuid - {kind} cgroup rw,{options}\n".encode()


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """The hierarchy of version 2, as plain files."""
    top = tmp_path / "cgroup"
    own = top / "system.slice/shell.scope"
    own.mkdir(parents=True)
    (top / "cgroup.subtree_control").write_text("cpu memory pids")
    (top / "system.slice/cgroup.subtree_control").write_text("memory pids")
    (own / "cgroup.controllers").write_text("memory pids")
    return top


class TestPlaces:
    def test_cgroup_v1_has_one_place_for_each_controller(self, tmp_path: Path) -> None:
        for name in ("memory/ours", "cpu,cpuacct", "pids"):
            (tmp_path / name).mkdir(parents=True)
        info = b"22 1 0:20 / /proc rw - proc proc rw\n"
        info += mount(tmp_path / "memory", "cgroup", "memory")
        info += mount(tmp_path / "cpu,cpuacct", "cgroup", "cpu,cpuacct")
        info += mount(tmp_path / "pids", "cgroup", "pids", "/box")
        own = "4:memory:/ours\n3:cpu,cpuacct:/\n2:pids:/box\n1:name=systemd:/\n0::/\n"
        assert find_cgroup_parents(own, info) == {
            "memory": CgroupParent(tmp_path / "memory/ours", 1),
            "cpu": CgroupParent(tmp_path / "cpu,cpuacct", 1),
            "pids": CgroupParent(tmp_path / "pids", 1),
        }

    def test_in_version_2_a_parent_group_that_delegates_is_used(self, top: Path) -> None:
        found = find_cgroup_parents("0::/system.slice/shell.scope\n", mount(top, "cgroup2", ""))
        there = CgroupParent(top / "system.slice", 2)
        assert found == {"memory": there, "pids": there}

    def test_a_v2_group_with_a_limit_of_its_own_is_never_left(self, top: Path) -> None:
        (top / "system.slice/shell.scope/memory.max").write_text("1000000\n")
        assert (
            find_cgroup_parents("0::/system.slice/shell.scope\n", mount(top, "cgroup2", "")) == {}
        )

    def test_no_place_is_found_outside_the_visible_cgroup_tree(self, top: Path) -> None:
        assert find_cgroup_parents("0::/../other\n", mount(top, "cgroup2", "")) == {}
        assert find_cgroup_parents("0::/b\n", mount(top, "cgroup2", "", "/a")) == {}
        assert find_cgroup_parents("", b"") == {}


class TestVersion2:
    """Its files, on a hierarchy that does not act upon them: this kernel's may have none."""

    def test_limits_are_written_to_v2_files_and_oom_kills_are_counted(self, tmp_path: Path) -> None:
        made = tmp_path / "ortet-m-1"
        made.mkdir()
        for name in ("memory.max", "cpu.max", "pids.max"):
            (made / name).touch()
        group = MachineCgroup(_ASKED, tmp_path)
        group._by_controller = dict.fromkeys(CONTROLLERS, (made, 2))
        group.write_limits(_ASKED)
        assert group.losses == []
        assert (made / "memory.max").read_text() == str(64 << 20)
        assert (made / "cpu.max").read_text() == "50000 100000"
        assert (made / "pids.max").read_text() == "100"
        (made / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
        assert group.oom_kills() == 2
        told = group.explain_limits(Result(137, "", "x\n", 0.1), 1)
        assert told.oom
        assert str(64 << 20) in told.stderr
        assert not group.explain_limits(Result(137, "", "", 0.1), 2).oom


class TestNothingCanBeWritten:
    def test_machines_run_without_and_the_doctor_says_so(self, tmp_path: Path) -> None:
        groups = CgroupFactory({"memory": CgroupParent(tmp_path / "gone", 1)})
        group = groups.create("m", _ASKED, tmp_path)
        assert group.paths == []
        assert [loss.what for loss in group.losses] == ["limit"] * 3
        assert group.oom_kills() == 0
        group.close()
        (line,) = probe_limits(groups)
        assert (line.name, line.ok) == ("limits", False)
        assert "pids" in line.detail
        assert line.fix
        assert groups.create("m", MachineLimits(), tmp_path).losses == []  # nobody asked for any


class TestLeftovers:
    def test_recorded_groups_of_a_killed_process_are_removed(self, tmp_path: Path) -> None:
        top, home = tmp_path / "top", tmp_path / "home"
        for path in (top, home):
            path.mkdir()
        groups = CgroupFactory({"pids": CgroupParent(top, 1)})
        groups.create("m", MachineLimits(), home)  # and then it was killed
        (made,) = recorded_groups(home)
        assert made.is_dir()
        (top / "other").mkdir()
        (home / "groups").write_text(f"{made}\n{top}/ortet-gone-1\n{top}/other\n")
        assert remove_recorded_groups(home) == [top / "other"]  # not one of ours
        assert not made.exists()


class TestReserved:
    def test_a_reserved_group_given_to_a_machine_is_removed_by_that_machine(
        self, tmp_path: Path
    ) -> None:
        top, home = tmp_path / "top", tmp_path / "home"
        for path in (top, home):
            path.mkdir()
        groups = CgroupFactory({"pids": CgroupParent(top, 1)})
        reserved = ReservedCgroups(groups, tmp_path)
        first, second = reserved.create(), reserved.create()
        (Path(first) / "pids.max").touch()
        group = groups.create("m", MachineLimits(), home, reserved=first)
        reserved.assign(first)
        assert group.paths == [first]
        assert recorded_groups(home) == [Path(first)]
        (record,) = (tmp_path / "reserved").iterdir()
        assert record.read_text() == f"{second}\n"
        reserved.abandon(second)
        third = reserved.create()
        assert sorted(top.iterdir()) == sorted([Path(first), Path(third)])
        reserved.close()
        assert list(top.iterdir()) == [Path(first)]  # which is the machine's

    def test_reserved_groups_of_a_killed_process_are_found_and_removed(
        self, tmp_path: Path
    ) -> None:
        local = tmp_path / "local"
        top, area = tmp_path / "top", local / "bases" / "area"
        top.mkdir()
        made = ReservedCgroups(CgroupFactory({"pids": CgroupParent(top, 1)}), area).create()
        assert find_leftovers(tmp_path, []) == []
        _end_maker(area)
        (found,) = find_leftovers(tmp_path, [])
        assert (found.what, found.path) == ("group", made)
        remove_leftovers([found])
        assert not Path(made).exists()
        remove_leftover_groups(area)
        assert list(leftover_records(area)) == []


def _end_maker(area: Path) -> None:
    """As when no process has the number any more by which they were written down."""
    for record in (area / "reserved").iterdir():
        record.rename(record.with_name(f"99999999-{record.name.partition('-')[2]}"))


def group_of(workspace: Workspace, controller: str) -> Path:
    machine = workspace.files.machine
    assert isinstance(machine, LiveMachine)
    return machine._live_process.cgroup._by_controller[controller][0]


def limit_of(workspace: Workspace, name: str = "pids.max") -> str:
    return (group_of(workspace, name.split(".", maxsplit=1)[0]) / name).read_text().strip()


class TestProcesses:
    pytestmark = _LIMITED_MACHINES

    def test_a_fork_bomb_ends_in_its_machine(self, hub: Hub, work: Path) -> None:
        ws = hub.workspace(work, engine="criu", limits={"pids": 60})
        job = ws.spawn("bomb", ["bash", "-c", _BOMB])
        events = group_of(ws, "pids") / "pids.events"
        eventually(lambda: events.read_text() != "max 0\n")
        assert (
            forked.run([sys.executable, "-c", ""], check=False).returncode == 0
        )  # the host has enough
        assert len(ws.programs.ps()) <= 60
        job.kill()
        assert ws.run("echo on").stdout == "on\n"
        ws.run("echo kept > file")
        commit = ws.commit("after the bomb")
        (fork,) = ws.fork(1)
        assert fork.run("cat file").stdout == "kept\n"
        assert fork.head is not None
        assert commit.oid

    def test_a_command_at_the_pids_limit_fails_with_the_reason(self, hub: Hub, work: Path) -> None:
        ws = hub.workspace(work, engine="criu", limits={"pids": 20})
        job = ws.spawn("many", [sys.executable, "-c", _MANY])
        assert job.read(0, WAIT).data.startswith(b"full")
        told = ws.run("true")
        assert told.exit_code != 0
        assert "as many processes as its limit allows, 20" in told.stderr
        job.kill()
        assert ws.run("true").exit_code == 0

    def test_a_machine_has_a_default_pids_limit(self, hub: Hub, work: Path) -> None:
        ws = hub.workspace(work, engine="criu")
        assert limit_of(ws) == str(DEFAULT_MAX_PIDS)
        assert ws.losses == []


class TestMemory:
    pytestmark = _LIMITED_MACHINES

    def test_a_job_over_the_memory_limit_is_killed_and_reported_as_oom(
        self, hub: Hub, work: Path
    ) -> None:
        ws = hub.workspace(work, engine="criu", limits={"memory": "64M"})
        told = ws.run([sys.executable, "-c", _HOG], timeout=2 * WAIT)
        assert (told.exit_code, told.oom) == (137, True)
        assert f"memory limit of {64 << 20} bytes" in told.stderr
        told = ws.run("echo on")  # pid 1 has survived
        assert (told.stdout, told.oom) == ("on\n", False)
        assert ws.commit("after").oid

    def test_a_recorded_run_keeps_its_oom_flag(self, hub: Hub, work: Path) -> None:
        limits = {"memory": "64M"}
        with hub.session("s", workspace=work, engine="criu", limits=limits) as session:
            assert session.run([sys.executable, "-c", _HOG], timeout=2 * WAIT, key="hog").oom
            assert session.run(
                [sys.executable, "-c", _HOG], timeout=2 * WAIT, key="hog"
            ).oom  # recalled


class TestTheyStay:
    pytestmark = _LIMITED_MACHINES

    def test_limits_survive_forks_restores_and_reopening(
        self, hub: Hub, work: Path, tmp_path: Path
    ) -> None:
        asked = {"memory": "256M", "cpu": 0.5, "pids": 100}
        ws = hub.workspace(work, engine="criu", limits=asked)
        ws.spawn("sleeper", ["sleep", "1000"])
        commit = ws.commit("running")
        (fork,) = ws.fork(1)
        assert group_of(fork, "pids") != group_of(ws, "pids")
        ws.restore(commit.oid)
        for one in (ws, fork):
            assert limit_of(one) == "100"
            pids = (group_of(one, "pids") / "cgroup.procs").read_text().split()
            assert len(pids) == 2  # pid 1 and what was restored, and no CRIU
            assert [job.code for job in one.programs.jobs()] == [None]
        hub.close()
        with ortet.open(tmp_path / "store") as again:
            assert limit_of(again.workspace(work, engine="criu")) == "100"
            other = again.workspace(name=fork.name, limits={"pids": 50})
            assert limit_of(other) == "50"

    def test_limits_of_a_session_without_a_directory_survive_reopening(
        self, hub: Hub, tmp_path: Path
    ) -> None:
        session = hub.session("s", engine="criu", limits={"pids": 77})
        assert limit_of(session.machine) == "77"
        (fork,) = session.fork(1)
        assert limit_of(fork.machine) == "77"
        hub.close()
        with ortet.open(tmp_path / "store") as again:
            assert limit_of(again.session("s").machine) == "77"
            assert limit_of(again.session(fork.name, limits={"pids": 78}).machine) == "78"


class TestRefused:
    pytestmark = _LIMITED_MACHINES

    def test_limits_are_refused_by_an_engine_without_limits(self, hub: Hub, work: Path) -> None:
        with pytest.raises(Unsupported) as caught:
            hub.workspace(work, limits={"pids": 50})
        assert caught.value.kind == "no_limits"
        with pytest.raises(Unsupported):
            hub.session("s", workspace=work, limits={"pids": 50})
        assert hub.sessions() == []

    def test_invalid_limits_are_refused(self, hub: Hub, work: Path) -> None:
        with pytest.raises(Invalid):
            hub.workspace(work, engine="criu", limits={"pids": "many"})
        with pytest.raises(Invalid):
            hub.session("s", engine="criu", limits={"speed": 1})


class TestNothingIsLeft:
    pytestmark = _LIMITED_MACHINES

    def test_closing_the_hub_removes_the_control_groups(self, hub: Hub, work: Path) -> None:
        ws = hub.workspace(work, engine="criu", limits={"memory": "256M", "cpu": 1})
        ws.spawn("sleeper", "sleep 1000")
        ws.commit("running")
        (fork,) = ws.fork(1)
        ws.restore(ws.name)
        paths = [group_of(one, c) for one in (ws, fork) for c in ("memory", "cpu", "pids")]
        assert all(path.is_dir() for path in paths)
        hub.close()
        assert not any(path.exists() for path in paths)

    @pytest.mark.parametrize("keeper", [False, True])
    def test_control_groups_of_a_killed_process_are_removed_as_leftovers(
        self, work: Path, tmp_path: Path, *, keeper: bool
    ) -> None:
        program = (
            "import ortet, sys\n"
            "hub = ortet.open(sys.argv[1])\n"
            "work = hub.workspace(sys.argv[2], engine='criu', limits={'memory': '256M'})\n"
            "print(*work.files.machine._live_process.cgroup.paths, flush=True)\n"
            "input()\n"
        )
        command = [sys.executable, "-c", program, str(tmp_path / "store"), str(work)]
        with forked.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
            assert one.stdout is not None
            paths = [Path(path) for path in one.stdout.readline().split()]
            (init,) = (paths[0] / "cgroup.procs").read_text().split()
            parent = int(Path(f"/proc/{init}/stat").read_text().rpartition(")")[2].split()[1])
            dying = [os.pidfd_open(pid) for pid in (int(init), parent)]
            if keeper:  # which else removes them even then
                os.kill(parent, signal.SIGKILL)
            one.send_signal(signal.SIGKILL)
        for fd in dying:
            wait_for(fd)
        assert len(paths) == 2
        with ortet.open(tmp_path / "store") as hub:
            found = [left.path for left in hub.maintenance.leftovers() if left.what == "group"]
            spare = [path for path in found if "/ortet-spare-" in path]
            assert sorted(set(found) - {*spare}) == (sorted(map(str, paths)) if keeper else [])
            eventually(lambda: not any(map(inhabited, spare)))  # the CRIU in each ends by itself
            hub.maintenance.tidy()
            assert not any(path.exists() for path in (*paths, *map(Path, spare)))
            assert hub.maintenance.leftovers() == []


def inhabited(group: str) -> bool:
    try:
        return bool(Path(group, "cgroup.procs").read_text())
    except FileNotFoundError:
        return False


def wait_for(fd: int) -> None:
    """Wait for the end of a process."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll()
    os.close(fd)

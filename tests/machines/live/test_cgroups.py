"""Control groups: where they can be made, what is written there, and that none is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortet.machines.base import Result
from ortet.machines.cleanup import find_leftovers, remove_leftovers
from ortet.machines.limits import MachineLimits
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

_ASKED = MachineLimits(memory=64 << 20, cpu=0.5, pids=100)


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

    def test_version_2_where_a_group_above_hands_on(self, top: Path) -> None:
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

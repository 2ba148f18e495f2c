"""Files that commits leave out go along with forks, and stay when a machine is restored."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.waiting import WAIT

from ortet.hub.hub import Hub
from ortet.machines.overlay import ignored_files
from ortet.workspaces.workspace import Workspace

needs_root = pytest.mark.criu
_ENGINES = ["overlay", pytest.param("criu", marks=needs_root)]
_RULES = "node_modules/\n*.cache\nsize > 1MB\n"
pytestmark = pytest.mark.files({".ortetignore": _RULES, "file": "one\n"})
_FILL = """
mkdir -p node_modules/pkg/bin src/deep
echo one > node_modules/pkg/index; chmod 750 node_modules/pkg/index
ln node_modules/pkg/index node_modules/pkg/other
ln -s ../index node_modules/pkg/bin/run
touch -d 2001-01-01 node_modules/pkg/bin
head -c 2000000 /dev/zero > big
echo kept > src/deep/a.cache; echo state > src/deep/b
"""
_LOOK = """
find . -type f -o -type l | LC_ALL=C sort; cat node_modules/pkg/bin/run src/deep/a.cache
stat -c '%a %h' node_modules/pkg/index; stat -c %Y node_modules/pkg/bin; stat -c %s big
"""


def machine(hub: Hub, work: Path, engine: str, *, busy: bool) -> Workspace:
    ws = hub.workspace(work, engine=engine)
    assert ws.run(_FILL).exit_code == 0
    if busy and engine == "criu":
        ws.spawn("server", ["sleep", "1000"])
    elif busy:
        ws.run("sleep 1000 > /dev/null 2>&1 < /dev/null &")
    return ws


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("engine", _ENGINES)
class TestForks:
    def test_forks_get_ignored_files_unchanged(
        self, hub: Hub, work: Path, engine: str, busy: bool
    ) -> None:
        ws = machine(hub, work, engine, busy=busy)
        seen = ws.run(_LOOK)
        assert "one\nkept\n750 2\n978307200\n2000000\n" in seen.stdout
        one, two = ws.fork(2)
        (third,) = one.fork(1)
        for fork in (one, two, third):
            assert fork.run(_LOOK).stdout == seen.stdout
            assert fork.status().changes == []
            assert not [loss for loss in fork.losses if loss.what == "ignored"]

    def test_each_fork_has_its_own_copy_of_ignored_files(
        self, hub: Hub, work: Path, engine: str, busy: bool
    ) -> None:
        ws = machine(hub, work, engine, busy=busy)
        one, two = ws.fork(2)
        one.run("echo mine > node_modules/pkg/index; rm src/deep/a.cache; echo x > x.cache")
        ws.run("echo ours >> node_modules/pkg/index; rm -r node_modules/pkg/bin")
        assert one.run("cat node_modules/pkg/index").stdout == "mine\n"
        assert two.run("cat node_modules/pkg/index").stdout == "one\n"
        assert two.run("ls node_modules/pkg src/deep").stdout.split() == [
            *("node_modules/pkg:", "bin", "index", "other"),
            *("src/deep:", "a.cache", "b"),
        ]
        (third,) = one.fork(1)
        assert third.run("cat node_modules/pkg/index; ls src/deep *.cache").stdout.split() == [
            *("mine", "x.cache", "src/deep:", "b")
        ]
        (last,) = ws.fork(1)
        assert last.run("cat node_modules/pkg/index; ls node_modules/pkg").stdout.split() == [
            *("one", "ours", "index", "other")
        ]

    def test_commit_of_a_fork_excludes_ignored_files(
        self, hub: Hub, work: Path, tmp_path: Path, engine: str, busy: bool
    ) -> None:
        ws = machine(hub, work, engine, busy=busy)
        (fork,) = ws.fork(1)
        fork.run("echo more > file")
        commit = fork.commit("in the fork")
        hub.restore(commit.oid, tmp_path / "out")
        found = sorted(p.name for p in (tmp_path / "out").rglob("*") if p.is_file())
        assert found == [".ortetignore", "b", "file"]
        # nor has a machine that begins with the same commit
        other = hub.workspace(tmp_path / "out", engine=engine)
        assert other.run("ls").stdout.split() == ["file", "src"]


@needs_root
class TestRestore:
    def test_restore_keeps_ignored_files_while_processes_are_restored(
        self, hub: Hub, work: Path
    ) -> None:
        ws = machine(hub, work, "criu", busy=True)
        commit = ws.commit("one")
        ws.run("echo two > file; mkdir new; echo n > new/n.cache; rm node_modules/pkg/other")
        ws.commit("two")
        ws.restore(commit.oid)
        assert [job.name for job in ws.programs.jobs() if job.code is None] == ["server"]
        assert ws.run("cat file node_modules/pkg/index new/n.cache").stdout == "one\none\nn\n"
        assert ws.run("ls node_modules/pkg").stdout.split() == ["bin", "index"]

    def test_restore_resets_ignored_files_that_a_restored_process_has_open(
        self, hub: Hub, work: Path
    ) -> None:
        ws = machine(hub, work, "criu", busy=False)
        job = ws.spawn("log", "exec 5>> held.cache; echo one >&5; echo ready; sleep 1000")
        assert job.read(0, WAIT).data.startswith(b"ready")
        commit = ws.commit("one")
        ws.run("echo two >> held.cache; echo two >> src/deep/a.cache")
        ws.restore(commit.oid)
        assert ws.run("cat held.cache src/deep/a.cache").stdout == "one\nkept\ntwo\n"

    def test_restore_overwrites_an_ignored_file_that_the_commit_contains(
        self, hub: Hub, work: Path
    ) -> None:
        ws = hub.workspace(work, engine="criu")
        ws.spawn("server", ["sleep", "1000"])
        ws.run("rm .ortetignore; echo state > a.cache; mkdir node_modules; echo s > node_modules/s")
        commit = ws.commit("as state")
        ws.run("echo '*.cache' > .ortetignore; echo node_modules/ >> .ortetignore")
        ws.run("echo other > a.cache; echo b > b.cache; echo t > node_modules/t")
        ws.commit("ignored")
        ws.restore(commit.oid)
        assert ws.run("cat a.cache b.cache node_modules/*").stdout == "state\nb\ns\nt\n"


@needs_root
def test_ignored_files_over_the_size_limit_are_left_out_and_reported(
    hub: Hub, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ignored_files, "MAX_COPIED_BYTES", 1000)
    ws = machine(hub, work, "criu", busy=True)
    for _ in range(2):
        (fork,) = ws.fork(1)
        left = [loss.path for loss in fork.losses if loss.what == "ignored"]
        if left:  # else the file system shares it
            assert left == ["big"]
            assert fork.run("ls big").exit_code != 0
        assert fork.run("cat src/deep/a.cache").stdout == "kept\n"

"""What surrounds a workspace is recorded when it changed, and told when it is not as it was."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from tests.fixtures.projects import Git

from ortet.config.environment import open_hub
from ortet.errors import Invalid, NotFound
from ortet.hub.hub import Hub
from ortet.journal.environment import (
    Environment,
    EnvironmentDifference,
    PythonPackages,
    Variable,
    differences,
)
from ortet.journal.events import Event
from ortet.machines.secrets.names import looks_secret
from ortet.sessions.environment.probe import probe_environment
from ortet.sessions.environment.rooted import ProbeTarget, RootedReader
from ortet.sessions.environment.variables import changed_variables

pytestmark = pytest.mark.files({"a": "one"})

PATH = os.environ["PATH"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "PATH": PATH}


@pytest.fixture
def hub_environ(environ: dict[str, str]) -> dict[str, str]:
    """The dict that tests change while a hub is open."""
    return environ


def install(work: Path, *names: str) -> Path:
    """A virtual environment in the workspace with these distributions, as NAME-VERSION."""
    site = work / ".venv/lib/python3.11/site-packages"
    site.mkdir(parents=True, exist_ok=True)
    (work / ".venv/pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.2\n")
    for name in names:
        (site / f"{name}.dist-info").mkdir()
    return site


def look(work: Path, environ: dict[str, str]) -> Environment:
    return probe_environment(ProbeTarget(str(work)), environ, environ)


class TestPackages:
    def test_python_packages_are_read_from_the_virtualenv_in_the_workspace(
        self, work: Path, environ: dict[str, str]
    ) -> None:
        assert look(work, environ).python is None
        site = install(work, "Foo_Bar-1.2", "zope.x-3.0rc1", "no version")
        (site / "old-0.9-py3.11.egg-info").mkdir()
        assert look(work, environ).python == PythonPackages(
            "3.11.2", {"foo-bar": "1.2", "zope-x": "3.0rc1", "old": "0.9"}
        )

    def test_python_packages_are_read_from_the_active_virtualenv(
        self, work: Path, environ: dict[str, str], tmp_path: Path
    ) -> None:
        install(tmp_path, "foo-1.2")
        environ["VIRTUAL_ENV"] = str(tmp_path / ".venv")
        found = look(work, environ).python
        assert found is not None and found.packages == {"foo": "1.2"}

    def test_npm_lock_file_is_recorded_as_a_digest(
        self, work: Path, environ: dict[str, str]
    ) -> None:
        assert look(work, environ).npm == ""
        (work / "package-lock.json").write_text("{}")
        first = look(work, environ).npm
        (work / "package-lock.json").write_text('{"a": 1}')
        assert len(first) == 64 and look(work, environ).npm != first


class TestMachine:
    def test_machine_files_are_read_only_inside_its_root(self, tmp_path: Path) -> None:
        root = tmp_path / "root"
        (root / "etc").mkdir(parents=True)
        (root / "run").mkdir()
        (root / "run/resolv").write_text("nameserver 10.0.0.1\nsearch a b\noptions x\n")
        (root / "etc/resolv.conf").symlink_to("/run/resolv")
        (root / "etc/out").symlink_to("../../../../" * 9 + str(tmp_path / "secret"))
        (tmp_path / "secret").write_text("x")
        (root / "loop").symlink_to("loop")
        os.mkfifo(root / "pipe")
        machine = RootedReader(str(root))
        assert machine.text("/etc/resolv.conf").startswith("nameserver")
        assert machine.read("/etc/out") is None
        assert machine.read("/loop") is None
        assert machine.read("/pipe") is None
        assert machine.read("/etc") is None
        assert machine.names("/etc") == ["out", "resolv.conf"]
        assert machine.names("/nothing") == []

    def test_overrides_of_hosts_and_resolver(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ortet.sessions.environment import probe as module

        files = {
            "/etc/hosts": "127.0.0.1 localhost\n::1 ip6-localhost # x\n"
            f"10.1.1.1 {os.uname().nodename}\n10.0.0.9\tregistry.test  other # ours\n",
            "/etc/resolv.conf": "# by hand\nnameserver  10.0.0.1\nsearch corp.test\noptions a\n",
        }
        monkeypatch.setattr(RootedReader, "text", lambda _, path: files.get(path, ""))
        found = module.probe_environment(ProbeTarget(), {}, {})
        assert found.hosts == ["10.0.0.9 registry.test other"]
        assert found.resolver == ["nameserver 10.0.0.1", "search corp.test"]
        del tmp_path


class TestVariables:
    def test_variables_records_only_changed_or_requested_names(self) -> None:
        opening = {"A": "1", "B": "2", "PWD": "/x", "ORTET_URL": "y"}
        now = {"A": "1", "B": "3", "C": "4", "PWD": "/z"}
        assert changed_variables(now, opening) == {"B": Variable("3"), "C": Variable("4")}
        assert changed_variables({}, {"A": "1"}) == {"A": Variable(unset=True)}
        assert changed_variables(now, now, ["A", "Z"]) == {
            "A": Variable("1"),
            "Z": Variable(unset=True),
        }

    def test_variable_with_undecodable_bytes_is_recorded_as_a_digest(self) -> None:
        found = changed_variables({"A": os.fsdecode(b"\xff")}, {})["A"]
        assert found == Variable(digest=hashlib.sha256(b"\xff").hexdigest())
        assert str(found) == "not kept (a8100ae6aa19)"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("GITHUB_TOKEN", "x"),
            ("DB_PASSWORD", "1"),
            ("OPENAI_API_KEY", "x"),
            ("KEY", "x"),
            ("X", "ghp_0123456789abcdefghij"),
            ("X", "https://me:pw@host.test/x"),
            ("X", "postgresql://a:b@h/db"),
            ("X", "-----BEGIN RSA PRIVATE KEY-----"),
            ("X", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc"),
            ("X", "AKIAIOSFODNN7EXAMPLE"),
            ("X", "9f86d081884c7d659a2feaa0c55ad015"),
            ("X", "--token=hush hush"),
            ("HEADERS", "Authorization: Bearer abcdefgh12"),
        ],
    )
    def test_variable_that_looks_secret_is_recorded_by_reference(
        self, name: str, value: str
    ) -> None:
        assert looks_secret(name, value)
        assert changed_variables({name: value}, {}) == {name: Variable(ref=f"env:{name}")}

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("PYTHONPATH", "src"),
            ("PATH", "/usr/local/sbin:/usr/bin"),
            ("EDITOR", "vim"),
            ("MONKEY", "banana"),
            ("SSH_AUTH_SOCK", "/run/x"),
            ("KEYBOARD", "de"),
            ("SITE", "https://example.test/a/b"),
        ],
    )
    def test_ordinary_variable_does_not_look_secret(self, name: str, value: str) -> None:
        assert not looks_secret(name, value)


class TestGit:
    def test_git_head_branch_changes_and_stashes_are_recorded(
        self, work: Path, git: Git, environ: dict[str, str]
    ) -> None:
        found = look(work, environ).git
        assert found is not None
        assert (found.head, found.branch, found.dirty) == (git("rev-parse", "HEAD"), "main", 0)
        (work / "a").write_text("two")
        (work / "new one").write_text("x")
        (work / "b").write_text("x")
        git("add", "b")
        found = look(work, environ).git
        assert found is not None and found.changed == [".M a", "A. b", "?? new one"]
        git("stash", "-q")
        git("checkout", "-q", "--detach")
        git("pack-refs", "--all")
        found = look(work, environ).git
        assert found is not None
        assert (found.branch, found.stashes, found.dirty) == ("", 1, 1)

    def test_git_repository_without_a_commit_has_an_empty_head(
        self, work: Path, environ: dict[str, str]
    ) -> None:
        subprocess.run(["git", "init", "-qb", "x"], cwd=work, env=environ, check=True)
        found = look(work, environ).git
        assert found is not None and (found.head, found.branch, found.dirty) == ("", "x", 1)

    def test_git_state_is_read_in_a_worktree(
        self, work: Path, git: Git, environ: dict[str, str], tmp_path: Path
    ) -> None:
        git("worktree", "add", "-qb", "side", str(tmp_path / "side"))
        (tmp_path / "side/a").write_text("two")
        found = look(tmp_path / "side", environ).git
        assert found is not None and (found.branch, found.changed) == ("side", [".M a"])
        assert found.head == git("rev-parse", "HEAD")
        del work

    def test_without_git_its_files_are_read(
        self, work: Path, git: Git, environ: dict[str, str]
    ) -> None:
        head = git("rev-parse", "HEAD")
        for _ in range(2):  # a loose ref, then a packed one
            found = look(work, {**environ, "PATH": "/nonexistent"}).git
            assert found is not None
            assert (found.head, found.branch, found.dirty) == (head, "main", -1)
            git("pack-refs", "--all")

    def test_a_hostile_repository_runs_nothing_and_nothing_is_written(
        self, work: Path, git: Git, environ: dict[str, str], tmp_path: Path
    ) -> None:
        trap = tmp_path / "trap"
        trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\ncat\n")
        trap.chmod(0o755)
        for key in ("core.fsmonitor", "filter.x.clean", "filter.x.process", "core.sshCommand"):
            git("config", key, str(trap))
        git("config", "filter.x.required", "true")
        git("config", "core.worktree", str(tmp_path))
        git("config", "core.hooksPath", str(tmp_path))
        (tmp_path / "evil").write_text(f"[core]\n\tfsmonitor = {trap}\n")
        git("config", "include.path", str(tmp_path / "evil"))
        (tmp_path / "post-index-change").symlink_to(trap)
        (work / ".gitattributes").write_text("* filter=x\n")
        (work / ".git/info/attributes").write_text("* filter=x\n")
        (work / "a").write_text("two")
        (tmp_path / "sprung").unlink(missing_ok=True)
        index = (work / ".git/index").stat()
        config = (work / ".git/config").read_bytes()
        found = look(work, environ).git
        assert found is not None and found.changed == [".M a", "?? .gitattributes"]
        assert not (tmp_path / "sprung").exists()
        after = (work / ".git/index").stat()
        assert (after.st_mtime_ns, after.st_ino) == (index.st_mtime_ns, index.st_ino)
        assert (work / ".git/config").read_bytes() == config
        assert not list((work / ".git").glob("*.lock"))

    @pytest.mark.root
    def test_git_state_is_read_if_another_user_owns_the_repository(
        self, work: Path, git: Git, environ: dict[str, str]
    ) -> None:
        os.chown(work, 12345, 12345)
        os.chown(work / ".git", 12345, 12345)
        found = look(work, environ).git
        assert found is not None and found.dirty == 0
        del git

    @pytest.mark.parametrize(
        "head", ["", "ref: refs/heads/../../../x", "ref: /etc/passwd", "nonsense", "ref: \0"]
    )
    def test_git_repository_with_a_broken_head_file_has_unknown_state(
        self, work: Path, environ: dict[str, str], head: str
    ) -> None:
        (work / ".git").mkdir()
        (work / ".git/HEAD").write_text(head)
        found = look(work, environ).git
        assert found is not None and (found.head, found.branch, found.dirty) == ("", "", -1)

    def test_git_state_of_a_fork_is_read_from_its_own_files(
        self, hub: Hub, work: Path, git: Git, environ: dict[str, str]
    ) -> None:
        del git, environ
        with hub.session("s", workspace=work) as s:
            s.say("user", "x")
            (kid,) = s.fork(1)
            kid.run("echo two > a; echo x > b")
            found = kid.environment().git
            assert found is not None and found.changed == [".M a", "?? b"]
            mine = s.environment().git
            assert mine is not None and mine.dirty == 0


class TestSession:
    def test_environment_event_is_recorded_only_after_a_change(self, hub: Hub, work: Path) -> None:
        install(work, "foo-1")
        with hub.session("s", workspace=work) as s:
            assert [e.kind for e in s.events()] == ["lifecycle", "environment"]
            found = s.environment()
            assert found.python is not None and found.python.packages == {"foo": "1"}
            first = s.commit()
            assert s.environment() == found and s.commit() == first
            install(work, "bar-2")
            assert s.environment() != found
            told = [e for e in s.events() if e.kind == "environment"]
            assert list(told[-1].data["parts"]) == ["python"]
            assert s.commit() != first
        view = hub.get(s.id)
        again = view.environment()
        assert again is not None and again.python is not None
        assert again.python.packages == {"bar": "2", "foo": "1"}

    def test_opening_elsewhere_is_no_reason_for_a_commit(
        self, tmp_path: Path, work: Path, environ: dict[str, str]
    ) -> None:
        store = tmp_path / "store"
        with open_hub(store, environ=environ) as hub, hub.session("s", workspace=work) as s:
            environ["PYTHONPATH"] = "src"
            s.run("true")
            head = s.commit()
        assert [e.kind for e in hub_events(tmp_path, environ)][-2:] == ["environment", "lifecycle"]
        del environ["PYTHONPATH"]
        with open_hub(store, environ=environ) as hub, hub.session("s") as s:
            assert s.commit() == head

    def test_environment_policy_decides_when_it_is_recorded(self, hub: Hub, work: Path) -> None:
        with hub.session("never", workspace=work, environment="asked") as s:
            s.run("true")
        assert "environment" not in [e.kind for e in hub.get(s.id).events()]
        with pytest.raises(Invalid):
            hub.session("bad", environment="sometimes")  # type: ignore[arg-type]
        with hub.session("never") as s:
            assert s.internals.profile.environment == "ends"
        with hub.session("long", profile="worker") as s:
            assert s.internals.profile.environment == "commit"

    def test_environment_policy_commit_records_changes_at_each_commit(
        self, hub: Hub, work: Path
    ) -> None:
        with hub.session("s", workspace=work, environment="commit") as s:
            first = s.commit()
            install(work, "foo-1")
            second = s.commit()
            assert s.environment(compare=True) == []
            assert s.commit() == second != first
            assert EnvironmentDifference("package", "foo", "", "1") in s.environment(
                compare=first.oid
            )

    def test_session_without_files_records_no_environment(self, hub: Hub) -> None:
        with hub.session("s") as s:
            assert [e.kind for e in s.events()] == ["lifecycle"]
            assert hub.get(s.id).environment() is None
            assert s.environment().git is None
            assert s.environment(compare=True) == []

    def test_secrets_are_never_stored(
        self, hub: Hub, work: Path, environ: dict[str, str], tmp_path: Path
    ) -> None:
        with hub.session("s", workspace=work) as s:
            environ["MY_TOKEN"] = "hush-hush-hush"
            environ["PLAIN"] = "shown"
            assert s.environment().variables["MY_TOKEN"] == Variable(ref="env:MY_TOKEN")
            s.commit()
            assert "hush" not in s.briefing().markdown
            assert "variable PLAIN: 'shown'" in s.briefing().markdown
        files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
        assert not any(b"hush-hush" in path.read_bytes() for path in files)

    def test_restore_tells_what_does_not_come_back(
        self, hub: Hub, work: Path, environ: dict[str, str], tmp_path: Path
    ) -> None:
        environ["VIRTUAL_ENV"] = str(tmp_path / ".venv")
        site = install(tmp_path, "foo-1", "bar-1")
        with hub.session("s", workspace=work) as s:
            environ["MODE"] = "a"
            s.environment()
            good = s.commit()
            (site / "foo-1.dist-info").rmdir()
            (site / "bar-1.dist-info").rename(site / "bar-2.dist-info")
            environ["MODE"] = "b"
            s.say("user", "on")
            s.commit()
            report = s.restore(good.oid)
            assert report.environment == [
                EnvironmentDifference("package", "bar", "1", "2"),
                EnvironmentDifference("package", "foo", "1", ""),
            ]
            assert "package foo: 1 then, nothing now" in str(report)
            assert s.environment(compare=True) == report.environment
            with pytest.raises(NotFound):
                s.environment(compare="nowhere")

    def test_the_repository_comes_back_with_the_files(self, hub: Hub, work: Path, git: Git) -> None:
        with hub.session("s", workspace=work) as s:
            s.commit()
            (work / "a").write_text("two")
            git("commit", "-qam", "two")
            assert [str(one)[:10] for one in s.environment(compare=True)] == ["git HEAD: "]
            s.commit()
            assert s.rewind().environment == []

    def test_briefing_shows_environment_and_its_differences(
        self, hub: Hub, work: Path, git: Git
    ) -> None:
        del git
        with hub.session("s", workspace=work) as s:
            (work / "a").write_text("two")
            install(work, "foo-1")
            s.environment()
            briefing = s.briefing()
            assert "## Environment" in briefing.markdown
            assert "git: main at" in briefing.markdown
            assert "package foo: nothing then, 1 now" in briefing.markdown
            assert briefing.data["environment"][0]["git"]["branch"] == "main"

    def test_replay_returns_the_recorded_environment(self, hub: Hub, work: Path) -> None:
        install(work, "foo-1")
        with hub.session("s", workspace=work) as s:
            s.say("user", "one")
            s.environment()
            s.say("user", "two")
            head = s.commit()
        install(work, "bar-1")
        with hub.session("s", replay=True) as s:
            s.say("user", "one")
            found = s.environment().python
            assert found is not None and found.packages == {"foo": "1"}
            s.say("user", "two")
            assert s.commit() == head

    def test_erased_session_has_no_recorded_environment(self, hub: Hub, work: Path) -> None:
        install(work, "foo-1")
        with hub.session("s", workspace=work) as s:
            s.say("user", "x")
            s.commit()
        hub.erase(session=s.id)
        assert hub.get(s.id).environment() is None
        hub.verify()


def hub_events(tmp_path: Path, environ: dict[str, str]) -> list[Event]:
    with open_hub(tmp_path / "store", environ=environ) as hub:
        (row,) = hub.sessions()
        return list(hub.get(row.id).events())


def test_differences_covers_python_npm_hosts_and_resolver() -> None:
    old = Environment(npm="a" * 64, hosts=["1 x"], resolver=["nameserver 1"])
    new = Environment(python=PythonPackages("3.12", {}), hosts=["1 y"], resolver=["nameserver 1"])
    assert [str(one) for one in differences(old, new)] == [
        "python: nothing then, 3.12 now",
        "npm lock: aaaaaaaaaaaa then, nothing now",
        "hosts 1 x: there then, nothing now",
        "hosts 1 y: nothing then, there now",
    ]
    assert differences(old, old) == []

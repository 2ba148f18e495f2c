"""Recorded variables are given back to a session's commands, here, elsewhere and at each commit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.fixtures import forked

from ortet.config.environment import open_hub
from ortet.hub.hub import Hub
from ortet.journal.environment import Environment, EnvironmentDifference, Variable, differences
from ortet.journal.events import Draft
from ortet.sessions.environment.variables import SessionVariables
from ortet.sessions.session import Session
from ortet.workspaces.workspace import Workspace

pytestmark = pytest.mark.files({"a": "one"})

Environ = pytest.MonkeyPatch
LONG = 32 * 1024


@pytest.fixture
def environ(monkeypatch: Environ) -> Environ:
    """The process's own, as a program changes it."""
    for name in ("MODE", "OTHER", "MY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def hub_environ(environ: Environ) -> Mapping[str, str]:
    """The environment of this process, as a program has it."""
    del environ
    return os.environ


def sees(session: Session | Workspace, name: str = "MODE", **env: str | None) -> str:
    command = f'printf %s "${{{name}-not set}}"'
    return session.run(command, env=env).stdout


ELSEWHERE = """
import json, os, sys
from ortet.config.environment import open_hub
before = dict(os.environ)
with open_hub(sys.argv[1]) as hub, hub.session("s") as s:
    exec(sys.stdin.read())
assert dict(os.environ) == before
print(json.dumps(told))
"""


def elsewhere(tmp_path: Path, script: str, **more: str) -> list[str]:
    """What another process tells, whose environment is bare but for these."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **more}
    done = forked.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path / "store")],
        env=env,
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


SEES = "told = [s.run('printf %s \"${MODE-not set}\"').stdout]"


def told(session: Session) -> list[Mapping[str, object]]:
    """What was recorded of variables, each time."""
    parts = [event.data["parts"] for event in session.events() if event.kind == "environment"]
    return [part["variables"] for part in parts if "variables" in part]


class TestElsewhere:
    def test_recorded_variable_is_given_to_commands_in_another_process(
        self, hub: Hub, work: Path, environ: Environ
    ) -> None:
        with hub.session("s", workspace=work) as s:
            environ.setenv("MODE", "safe")
            assert sees(s) == "safe"
        tmp_path = work.parent
        assert elsewhere(tmp_path, SEES) == ["safe"]
        assert elsewhere(tmp_path, SEES, MODE="theirs") == ["safe"]
        assert elsewhere(tmp_path, SEES) == ["safe"]  # though it was as usual in between
        assert elsewhere(tmp_path, SEES.replace("s.run", "s.machine.run")) == ["safe"]
        inside = "told = [s.act(lambda: s.machine.run('echo $MODE').stdout.strip(), name='x')]"
        assert elsewhere(tmp_path, inside) == ["safe"]

    def test_recorded_unset_variable_stays_unset_in_another_process(
        self, tmp_path: Path, work: Path, environ: Environ, monkeypatch: Environ
    ) -> None:
        environ.setenv("MODE", "usual")
        with open_hub(tmp_path / "store") as hub, hub.session("s", workspace=work) as s:
            monkeypatch.delenv("MODE")
            assert s.environment().variables["MODE"] == Variable(unset=True)
        assert elsewhere(tmp_path, SEES, MODE="theirs") == ["not set"]

    def test_change_in_the_process_environment_overrides_the_recorded_variable(
        self, hub: Hub, work: Path, environ: Environ
    ) -> None:
        with hub.session("s", workspace=work) as s:
            environ.setenv("MODE", "safe")
            s.environment()
        environ.delenv("MODE")
        with hub.session("s") as s:
            assert sees(s) == "safe"
            environ.setenv("MODE", "fast")
            assert sees(s) == "fast"
            assert s.environment().variables["MODE"] == Variable("fast")
            environ.delenv("MODE")
            assert sees(s) == "not set"
            assert s.environment().variables["MODE"] == Variable(unset=True)
        environ.setenv("MODE", "safe")
        with hub.session("s") as s:
            assert sees(s) == "not set"

    def test_variable_given_to_a_command_overrides_all_others(
        self, hub: Hub, work: Path, environ: Environ
    ) -> None:
        with hub.session("s", workspace=work) as s:
            environ.setenv("MODE", "safe")
        environ.delenv("MODE")
        with hub.session("s") as s:
            assert sees(s, MODE="asked") == "asked"
            assert sees(s, MODE=None) == "not set"
            assert sees(s, OTHER="x") == "safe"

    def test_secret_variable_is_taken_from_the_current_process_only(
        self, hub: Hub, work: Path, environ: Environ
    ) -> None:
        with hub.session("s", workspace=work) as s:
            environ.setenv("MY_TOKEN", "hush")
            s.environment()
            s.commit()
        compare = "told = [str(one) for one in s.environment(compare=True)]"
        assert "variable MY_TOKEN: env:MY_TOKEN then, not set now" in elsewhere(
            work.parent, compare
        )
        found = elsewhere(work.parent, compare, MY_TOKEN="another")
        assert not [one for one in found if "MY_TOKEN" in one]
        run = SEES.replace("MODE", "MY_TOKEN")
        assert elsewhere(work.parent, run) == ["not set"]
        assert elsewhere(work.parent, run, MY_TOKEN="another") == ["another"]

    def test_host_specific_variables_are_not_restored_elsewhere(
        self, hub: Hub, work: Path, environ: Environ, tmp_path: Path
    ) -> None:
        names = ("HOME", "TMPDIR", "SSH_AUTH_SOCK", "TERM", "DISPLAY", "XDG_RUNTIME_DIR")
        with hub.session("s", workspace=work) as s:
            for name in names:
                environ.setenv(name, str(tmp_path))
            assert set(names) <= set(s.environment().variables)
        script = f"told = [s.run('echo ${{'+n+'-theirs}}').stdout.strip() for n in {names}]"
        assert elsewhere(tmp_path, script, HOME="theirs") == ["theirs"] * len(names)

    def test_the_workspace_alone_has_them_too(self, hub: Hub, work: Path, environ: Environ) -> None:
        with hub.session("s", workspace=work) as s:
            first = s.commit()
            environ.setenv("MODE", "safe")
            s.commit()
        environ.delenv("MODE")
        with hub.workspace(work) as ws:
            assert sees(ws) == "safe"
            ws.restore(first.oid)
            assert sees(ws) == "not set"

    @pytest.mark.root
    def test_environment_reading_ignores_the_recorded_path(
        self, hub: Hub, work: Path, environ: Environ, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """Reading the environment runs no program that only a recorded PATH names. A long name in
        that PATH could look like a secret and would not be recorded."""
        place = tmp_path_factory.mktemp("trap")
        subprocess.run(["git", "init", "-q"], cwd=work, check=True)
        trap = place / "bin/git"
        trap.parent.mkdir()
        trap.write_text(f"#!/bin/sh\ntouch {place}/sprung\n")
        trap.chmod(0o755)
        with hub.session("s", workspace=work) as s:
            with environ.context() as inside:
                inside.setenv("PATH", f"{trap.parent}:/usr/bin:/bin")
                s.commit()
            s.internals.lifecycle.abandon()
        with hub.session("s") as s:
            s.environment()
            assert not (place / "sprung").exists()
            s.run("git status")
            assert (place / "sprung").exists()

    def test_variables_are_not_recorded_with_the_asked_policy(
        self, hub: Hub, work: Path, environ: Environ
    ) -> None:
        with hub.session("s", workspace=work, environment="asked") as s:
            environ.setenv("MODE", "safe")
            s.run("true")
            s.commit()
        environ.delenv("MODE")
        with hub.session("s", environment="asked") as s:
            assert sees(s) == "not set"


class TestRestore:
    def test_restore_brings_back_the_variables_of_the_commit(
        self, hub: Hub, work: Path, environ: Environ
    ) -> None:
        with hub.session("s", workspace=work) as s:
            none = s.commit()
            environ.setenv("MODE", "one")
            one = s.commit()
            environ.setenv("MODE", "two")
            environ.setenv("OTHER", "x")
            two = s.commit()
            assert len({none.oid, one.oid, two.oid}) == 3
            assert s.restore(one.oid).environment == []
            assert (sees(s), sees(s, "OTHER")) == ("one", "not set")
            assert os.environ["MODE"] == "two" and os.environ["OTHER"] == "x"
            assert s.restore(none.oid).environment == []
            assert sees(s) == "not set"
            assert s.restore(two.oid).environment == []
            assert (sees(s), sees(s, "OTHER")) == ("two", "x")
            s.rewind()
            assert sees(s) == "one"
            environ.setenv("MODE", "three")
            assert sees(s) == "three"
            assert s.environment().variables["MODE"] == Variable("three")
            three = s.commit()
            s.restore(two.oid)
            s.restore(three.oid)
            assert sees(s) == "three"

    def test_restore_keeps_uncommitted_variables_in_the_reflog(
        self, hub: Hub, work: Path, environ: Environ
    ) -> None:
        with hub.session("s", workspace=work) as s:
            environ.setenv("MODE", "one")
            one = s.commit()
            environ.setenv("MODE", "two")
            s.restore(one.oid)
            assert sees(s) == "one"
            s.restore("HEAD@{1}")
            assert sees(s) == "two"

    def test_restore_of_files_only_keeps_the_variables(
        self, hub: Hub, work: Path, environ: Environ
    ) -> None:
        with hub.session("s", workspace=work) as s:
            environ.setenv("MODE", "one")
            one = s.commit()
            environ.setenv("MODE", "two")
            s.restore(one.oid, only={"files"})
            assert sees(s) == "two"
            s.restore(one.oid, only={"mind"})
            assert sees(s) == "one"

    def test_a_secret_that_is_missing_is_told(self, hub: Hub, work: Path, environ: Environ) -> None:
        with hub.session("s", workspace=work) as s:
            before = s.commit()
            environ.setenv("MY_TOKEN", "hush")
            good = s.commit()
            s.restore(before.oid)
            assert sees(s, "MY_TOKEN") == "hush"
            environ.delenv("MY_TOKEN")
            report = s.restore(good.oid)
            assert report.environment == [
                EnvironmentDifference("variable", "MY_TOKEN", "env:MY_TOKEN", "not set")
            ]

    def test_unchanged_variables_record_no_event(
        self, hub: Hub, work: Path, environ: Environ
    ) -> None:
        with hub.session("s", workspace=work) as s:
            environ.setenv("MODE", "one")
            one = s.commit()
            recorded = told(s)
            assert s.commit() == one
            assert s.environment(compare=True) == []
        environ.delenv("MODE")
        with hub.session("s") as s:
            assert sees(s) == "one"
            assert s.environment().variables["MODE"] == Variable("one")
            assert s.environment(compare=True) == []
            assert told(s) == recorded
            state = hub.history.state(hub.refs.resolve(one.oid))
        with hub.session("s") as s:
            s.restore(one.oid)
            assert s.environment(compare=True) == []
            assert s.commit() == one
            assert hub.history.state(hub.refs.resolve("s")) == state

    def test_fork_has_its_own_variables(self, hub: Hub, work: Path, environ: Environ) -> None:
        with hub.session("s", workspace=work) as s:
            environ.setenv("MODE", "one")
            s.commit()
            environ.setenv("MODE", "two")
            (kid,) = s.fork(1)
            assert sees(kid) == sees(s) == "two"
            s.rewind()
            assert (sees(kid), sees(s)) == ("two", "one")
            environ.setenv("OTHER", "kid")
            kid.environment()
            kid.pause()
        environ.delenv("MODE")
        environ.delenv("OTHER")
        with hub.session(kid.name) as again:
            assert (sees(again), sees(again, "OTHER")) == ("two", "kid")

    def test_whatif_and_live_replay_use_variables_of_that_point(
        self, hub: Hub, work: Path, environ: Environ
    ) -> None:
        with hub.session("s", workspace=work) as s:
            environ.setenv("MODE", "one")
            s.commit()
            said = s.say("user", "y")
            s.commit()
            environ.setenv("MODE", "two")
            s.commit()
            other = s.whatif(said.seq, message="z")
            assert (sees(other), sees(s)) == ("one", "two")
            environ.setenv("MODE", "three")
            assert sees(other) == "three"
        environ.delenv("MODE")
        with hub.session("s", replay="live") as s:
            s.say("user", "something else")
            assert sees(s) == "one"

    def test_merge_keeps_our_variables(self, hub: Hub, work: Path, environ: Environ) -> None:
        with hub.session("s", workspace=work) as s:
            environ.setenv("MODE", "one")
            s.commit()
            (kid,) = s.fork(1)
            kid.run("echo x > b")
            environ.setenv("MODE", "two")
            s.merge(kid)
            assert sees(s) == "two"
        environ.delenv("MODE")
        with hub.session("s") as s:
            assert sees(s) == "two"


class TestWhole:
    def test_variable_longer_than_the_limit_is_not_kept(
        self, hub: Hub, work: Path, environ: Environ
    ) -> None:
        with hub.session("s", workspace=work) as s:
            environ.setenv("MODE", "ab " * 5000)
            environ.setenv("OTHER", "a " * LONG)
            found = s.environment().variables
            assert found["MODE"].value == "ab " * 5000
            assert found["OTHER"].value == "" and "not kept" in str(found["OTHER"])
            good = s.commit()
            assert s.environment(compare=True) == []
        environ.delenv("MODE")
        environ.delenv("OTHER")
        with hub.session("s") as s:
            assert sees(s) == "ab " * 5000
            assert sees(s, "OTHER") == "not set"
            (one,) = s.environment(compare=good.oid)
            assert one.name == "OTHER" and one.now == "not set"
            assert "not kept" in s.briefing().markdown

    def test_variable_of_a_thousand_characters_is_kept(
        self, hub: Hub, work: Path, environ: Environ
    ) -> None:
        with hub.session("s", workspace=work) as s:
            environ.setenv("MODE", "ab " * 333 + "c")
        environ.delenv("MODE")
        with hub.session("s") as s:
            assert sees(s) == "ab " * 333 + "c"

    def test_variable_truncated_by_an_earlier_release_is_not_given_back(
        self, hub: Hub, work: Path, environ: Environ
    ) -> None:
        with hub.session("s", workspace=work) as s:
            old = {"MODE": {"value": "ab " * 333 + "c"}, "OTHER": {"value": "short"}}
            s.internals.pipeline.writer.add(
                Draft("environment", {"parts": {"variables": old}, "asked": True})
            )
            s.internals.context.dirty = True
            s.internals.lifecycle.release()
        del environ
        with hub.session("s") as s:
            assert (sees(s), sees(s, "OTHER")) == ("not set", "short")
            assert s.environment().variables["MODE"].value == "ab " * 333 + "c"

    @pytest.mark.slow
    def test_variables_too_large_for_one_event_are_recorded_as_digests(
        self, hub: Hub, work: Path, environ: Environ
    ) -> None:
        with hub.session("s", workspace=work, environment="commit") as s:
            for number in range(60):
                environ.setenv(f"BIG{number:02}", "ab " * 10000)
            s.commit()
            found = [one for name, one in s.environment().variables.items() if "BIG" in name]
            assert len([one for one in found if one.value]) == 8
            assert len([one for one in found if not one.value and one.digest]) == 52

    def test_variables_with_illegal_or_reserved_names_are_left_out(self) -> None:
        mine = SessionVariables({}, {})
        bad = {
            name: Variable("x")
            for name in ("", "A=B", "A\0", "\\xff", "HOME", "PWD", "ORTET_VAULT_KEY", "SSH_X")
        }
        assert mine.overrides(bad) == {}
        assert mine.overrides({"A": Variable("x\0"), "B": Variable("\\xff")}) == {}
        assert mine.overrides({"A": Variable(""), "LD_PRELOAD": Variable("x")}) == {
            "A": "",
            "LD_PRELOAD": "x",
        }

    def test_variable_value_that_looks_escaped_is_kept_literally(self) -> None:
        mine = SessionVariables(now := {"A": "\\xff"}, {})
        recorded = mine.record({})
        assert recorded["A"].value == "\\xff"
        del now["A"]
        assert SessionVariables({}, {}).overrides(recorded) == {"A": "\\xff"}

    def test_digest_next_to_an_equal_value_is_no_difference(self) -> None:
        old, new = Variable("x"), Variable("x", digest="d")
        one, other = Environment(variables={"A": old}), Environment(variables={"A": new})
        assert differences(one, other) == differences(other, one) == []

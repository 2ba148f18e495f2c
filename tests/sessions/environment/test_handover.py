"""Handover files: what the next worker needs, written so that nothing of anybody else is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures import forked

from ortet.errors import Conflict, Invalid
from ortet.hub.hub import Hub
from ortet.sessions.session import Session

FILES = ["BRIEFING.md", "feature_list.json", "progress.md"]


def work_on(s: Session) -> None:
    s.plan(["reproduce", "fix", "verify"])
    with pytest.raises(ZeroDivisionError):
        s.act(lambda: 1 / 0, name="divide", why="see it fail")
    s.lesson("zero is no divisor")
    s.act(lambda: 1, name="divide", why="with one")
    s.advance()
    s.decide("patch it", why="small", instead_of=["rewrite"])


def features(place: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((place / "feature_list.json").read_text())[
        "features"
    ]
    return found


class TestContents:
    def test_handover_writes_features_progress_and_briefing(self, hub: Hub, tmp_path: Path) -> None:
        out = tmp_path / "out"
        with hub.session("s", goal="be green") as s:
            work_on(s)
            made = s.handover(out)
            assert sorted(made.written) == FILES and made.unchanged == []
            assert sorted(os.listdir(out)) == FILES
            first, second, third = features(out)
            assert (first["description"], first["passes"], first["state"]) == (
                "reproduce",
                True,
                "done",
            )
            assert (first["attempts"], first["failed"]) == (2, 1)
            last = first["last"]
            assert isinstance(last, dict) and last["state"] == "done" and last["why"] == "with one"
            assert (second["passes"], second["state"], second["last"]) == (False, "now", None)
            assert third["state"] == "to do"
            log = (out / "progress.md").read_text()
            for text in (
                "goal: be green",
                "planned: reproduce; fix; verify",
                "`divide` (see it fail): failed with ZeroDivisionError",
                "`divide` (with one): done",
                "learned: zero is no divisor",
                "step 2 of 3: fix",
                "decided: patch it, because small; not taken: rewrite",
            ):
                assert text in log, text
            assert "# Briefing: s" in (out / "BRIEFING.md").read_text()

    def test_handover_counts_a_nonzero_exit_code_as_a_failed_attempt(
        self, hub: Hub, work: Path
    ) -> None:
        with hub.session("s", workspace=work) as s:
            s.plan(["test"])
            s.run("exit 3", why="try")
            s.handover("out")
            (only,) = features(work / "out")
            assert (only["attempts"], only["failed"]) == (1, 1)
            assert "`run` (try): exit code 3" in (work / "out/progress.md").read_text()

    def test_moving_the_plan_back_resets_passes_of_later_features(
        self, hub: Hub, tmp_path: Path
    ) -> None:
        with hub.session("s") as s:
            s.plan(["a", "b"])
            s.advance()
            s.advance()
            s.handover(tmp_path / "out")
            assert [one["passes"] for one in features(tmp_path / "out")] == [True, True]
            s.advance(0)
            s.handover(tmp_path / "out")
            assert [one["passes"] for one in features(tmp_path / "out")] == [False, False]
            log = (tmp_path / "out/progress.md").read_text()
            assert "all steps done" in log and log.count("\n- ") == 4

    def test_handover_after_a_restore_describes_the_restored_state(
        self, hub: Hub, tmp_path: Path
    ) -> None:
        with hub.session("s") as s:
            s.decide("one")
            good = s.commit()
            s.decide("two")
            s.handover(tmp_path / "out")
            s.restore(good.oid)
            s.handover(tmp_path / "out")
            log = (tmp_path / "out/progress.md").read_text()
            assert "decided: one" in log and "two" not in log

    def test_handover_can_be_written_from_a_read_only_view(self, hub: Hub, tmp_path: Path) -> None:
        with hub.session("s", goal="g") as s:
            s.plan(["a"])
        assert hub.get(s.id).handover(tmp_path / "out").written
        assert features(tmp_path / "out")[0]["description"] == "a"

    def test_long_progress_file_keeps_only_the_newest_entries(
        self, hub: Hub, tmp_path: Path
    ) -> None:
        with hub.session("s", durability="commit") as s:
            for number in range(1010):
                s.learn(f"fact {number}")
            s.handover(tmp_path / "out")
        log = (tmp_path / "out/progress.md").read_text()
        assert "(10 earlier entries" in log and "fact 9\n" not in log and "fact 1009" in log


class TestWriting:
    def test_handover_with_unchanged_content_does_not_rewrite_files(
        self, hub: Hub, tmp_path: Path
    ) -> None:
        with hub.session("s") as s:
            s.plan(["a"])
            s.handover(tmp_path)
            before = {name: (tmp_path / name).stat() for name in FILES}
            assert s.handover(tmp_path).written == []
            s.think("of something")
            made = s.handover(tmp_path)
            assert made.written == [] and len(made.unchanged) == 3
            for name, old in before.items():
                now = (tmp_path / name).stat()
                assert (now.st_mtime_ns, now.st_ino) == (old.st_mtime_ns, old.st_ino)

    @pytest.mark.parametrize("name", FILES)
    @pytest.mark.parametrize("content", ["mine\n", "{}", '{"generated_by": "me"}', ""])
    def test_handover_refuses_to_overwrite_foreign_files(
        self, hub: Hub, tmp_path: Path, name: str, content: str
    ) -> None:
        out = tmp_path / "out"
        out.mkdir()
        (out / name).write_text(content)
        with hub.session("s") as s:
            with pytest.raises(Conflict, match=name) as error:
                s.handover(out)
            assert error.value.kind == "not_ours"
        assert os.listdir(out) == [name] and (out / name).read_text() == content

    def test_handover_does_not_follow_symlinks_or_write_special_files(
        self, hub: Hub, tmp_path: Path, work: Path
    ) -> None:
        target = tmp_path / "target"
        target.mkdir()
        with hub.session("s", workspace=work) as s:
            (work / "out").symlink_to(target)
            (work / "in").mkdir()
            (work / "in/BRIEFING.md").symlink_to(target / "x")
            (work / "pipe").mkdir()
            os.mkfifo(work / "pipe/progress.md")
            (work / "file").write_text("x")
            for place in ("out", "out/deeper", "in", "pipe", "file"):
                with pytest.raises(Conflict):
                    s.handover(place)
            with pytest.raises(Conflict):
                s.handover(work / "out")
            (work / "ok").mkdir()
            (work / "ok/BRIEFING.md.ortet-new").symlink_to(target / "x")
            s.handover("ok/deep")
            s.handover("ok")
        assert os.listdir(target) == []
        assert sorted(os.listdir(work / "ok")) == [*FILES[:1], "deep", *FILES[1:]]

    @pytest.mark.parametrize("place", ["", "../x", "a/../../b", "a\0b"])
    def test_handover_to_a_bad_directory_is_refused(self, hub: Hub, work: Path, place: str) -> None:
        with hub.session("s", workspace=work) as s, pytest.raises(Invalid):
            s.handover(place)

    def test_handover_killed_while_writing_is_completed_by_the_next_call(
        self, tmp_path: Path, work: Path
    ) -> None:
        code = (
            "import sys\n"
            "from ortet.config.environment import open_hub\n"
            "s = open_hub(sys.argv[1]).session('s', workspace=sys.argv[2])\n"
            "s.plan(['a'])\n"
            "s.handover('out')\n"
        )
        for fault, end in (("handover.before-rename:kill:2", -signal.SIGKILL), ("", 0)):
            done = forked.run(
                [sys.executable, "-c", code, str(tmp_path / "store"), str(work)],
                env={**os.environ, "ORTET_FAULT": fault},
                check=False,
            )
            assert done.returncode == end
        assert sorted(os.listdir(work / "out")) == FILES


class TestByPolicy:
    def test_each_commit_contains_the_handover_files_of_its_state(
        self, hub: Hub, work: Path
    ) -> None:
        with hub.session("s", workspace=work, handover="hand/over") as s:
            work_on(s)
            first = s.commit()
            assert s.commit() == first
            s.advance()
            second = s.commit()
            assert [one["passes"] for one in features(work / "hand/over")] == [True, True, False]
            s.restore(first.oid)
            assert [one["passes"] for one in features(work / "hand/over")] == [True, False, False]
            assert s.commit() == first
            s.restore(second.oid)
            assert s.commit() == second
            (kid,) = s.fork(1)
            assert kid.commit() == second
            kid.advance()
            kid.commit()
            assert all(one["passes"] for one in features(Path(kid.machine.path) / "hand/over"))

    def test_worker_profile_writes_handover_files_at_each_commit(
        self, hub: Hub, work: Path
    ) -> None:
        subprocess.run(["git", "init", "-q"], cwd=work, check=True)
        with hub.session("s", workspace=work, profile="worker") as s:
            s.plan(["a"])
            first = s.commit()
            assert sorted(os.listdir(work / "handover")) == FILES
            assert s.commit() == first  # what we wrote is no change of the repository
            found = s.environment().git
            assert found is not None and not any("handover" in one for one in found.changed)
        with hub.session("s") as s:
            assert s.commit() == first
        with hub.session("s", handover="") as s:
            s.advance()
            s.commit()
            assert features(work / "handover")[0]["passes"] is False

    def test_merge_and_land_of_forks_do_not_conflict_in_handover_files(
        self, hub: Hub, work: Path
    ) -> None:
        with hub.session("s", workspace=work, handover="h") as s:
            s.plan(["a", "b"])
            s.commit()
            one, two = s.fork(2)
            for number, kid in enumerate((one, two)):
                kid.run(f"echo x > {number}")
                kid.lesson(f"lesson {number}")
                kid.commit()
            s.advance()
            s.commit()
            assert s.merge(one).conflicts == []
            two.land()
            assert (work / "0").exists() and (work / "1").exists()
            s.advance()
            s.commit()
            assert "lesson 0" in (work / "h/progress.md").read_text()
            assert features(work / "h")[0]["passes"] is True
            with pytest.raises(Conflict):  # elsewhere as ever
                one.run("echo other > 1")
                s.merge(one)

    def test_passing_time_does_not_change_handover_files_or_make_a_commit(
        self, hub: Hub, work: Path
    ) -> None:
        with hub.session("s", workspace=work, handover="h", budget={"seconds": 3600}) as s:
            s.say("user", "x")
            s.note("k", "v", ttl=0.0)
            first = s.commit()
            assert s.commit() == first

    def test_a_file_in_the_way_is_a_warning(self, hub: Hub, work: Path) -> None:
        (work / "h").mkdir()
        (work / "h/progress.md").write_text("mine")
        with hub.session("s", workspace=work, handover="h") as s:
            s.say("user", "x")
            s.commit()
            s.say("user", "y")
            head = s.commit()
            assert s.commit() == head
            warned = [event for event in s.events() if event.kind == "warning"]
            assert [one.data["kind"] for one in warned] == ["not_ours"]
        assert (work / "h/progress.md").read_text() == "mine"

    def test_handover_policy_with_a_path_outside_the_workspace_is_refused(
        self, hub: Hub, work: Path
    ) -> None:
        for place in ("/tmp/x", "../x"):
            with pytest.raises(Invalid):
                hub.session("s", workspace=work, handover=place)

    def test_worker_profile_without_a_workspace_commits_without_handover_files(
        self, hub: Hub
    ) -> None:
        with hub.session("s", profile="worker") as s:
            s.say("user", "x")
            s.commit()

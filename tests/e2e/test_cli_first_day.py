"""Mistakes that new users made on their first day, through a real process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.fixtures.commands import Commit, Ortet

from ortet.config.environment import open_hub


def late(ortet: Ortet, proj: Path, fork: str = "proj/1") -> None:
    ortet("run", "-w", fork, "echo late > late.txt", cwd=proj)


class TestForksByName:
    def test_merge_commits_uncommitted_changes_of_the_fork_first(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        ortet("fork", cwd=proj)
        late(ortet, proj)
        assert "without conflict" in ortet("merge", "proj/1", "--dry-run", cwd=proj).out
        ortet("merge", "proj/1", cwd=proj)
        assert (proj / "late.txt").read_text() == "late\n"
        assert "nothing to merge" in ortet("merge", "proj/1", cwd=proj).out
        assert "nothing to merge" in ortet("merge", "proj/1", "--dry-run", cwd=proj).out

    def test_a_fork_of_a_fork_has_its_uncommitted_changes(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        ortet("fork", cwd=proj)
        late(ortet, proj)
        (made,) = ortet.json("fork", "proj/1", cwd=proj)
        assert ortet("run", "-w", made["name"], "cat late.txt", cwd=proj).out == "late\n"

    def test_diff_export_and_restore_warn_about_uncommitted_changes_of_a_fork(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        ortet("fork", cwd=proj)
        calls = [
            ["diff", "proj", "proj/1"],
            ["export", "proj/1", "../x.bundle"],
            ["restore", "proj/1", "--to", "../out"],
        ]
        assert ortet(*calls[0], cwd=proj).err == ""
        late(ortet, proj)
        for call in calls:
            assert "proj/1 has changes that are not committed" in ortet(*call, cwd=proj).err
        assert ortet(*calls[0], "--json", cwd=proj).err == ""

    def test_drop_commits_uncommitted_changes_and_checks_all_names_first(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        ortet("fork", "-n", "3", cwd=proj)
        late(ortet, proj)
        ortet("drop", "proj/1", "nope", "proj/2", cwd=proj, code=4)
        assert len(ortet.json("branch", cwd=proj)) == 4
        ortet("drop", "proj/1", "proj/2", cwd=proj)
        assert ortet("show", "proj/1", "late.txt", cwd=proj).out == "late\n"


class TestPointer:
    def test_reading_commands_never_rewrite_the_pointer(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        copy = proj.with_name("copy")
        shutil.copytree(proj, copy, symlinks=True)
        before = (copy / ".ortet").read_text()
        for verb in (["status"], ["log"], ["branch"]):
            ortet(*verb, cwd=copy, code=None)
        assert (copy / ".ortet").read_text() == before
        assert ortet.json("commit", "-m", "x", cwd=copy)["name"] == "copy"
        assert (copy / ".ortet").read_text().endswith("#copy\n")

    def test_using_another_store_once_leaves_the_pointer_unchanged(
        self, ortet: Ortet, proj: Path, commit: Commit, tmp_path: Path
    ) -> None:
        commit("first")
        before = (proj / ".ortet").read_text()
        other = {"ORTET_URL": str(tmp_path / "other")}
        assert ".ortet still names" in ortet("init", cwd=proj, env=other).err
        ortet("init", "--name", "again", cwd=tmp_path / "home", env=other)
        for verb in (["status"], ["commit", "-m", "x"], ["fork"]):
            ortet(*verb, cwd=proj, env=other)
        assert (proj / ".ortet").read_text() == before

    @pytest.mark.parametrize("store", [".", "inside", "deep/inside"])
    @pytest.mark.parametrize("how", ["option", "variable"])
    def test_init_with_a_store_inside_the_workspace_creates_nothing(
        self, ortet: Ortet, tmp_path: Path, store: str, how: str
    ) -> None:
        place = tmp_path / "work"
        place.mkdir()
        words = ["--store", store] if how == "option" else []
        env = {"ORTET_URL": str(place / store)} if how == "variable" else {}
        done = ortet("init", *words, "--json", cwd=place, code=2, env=env)
        assert done.error["kind"] == "store_in_workspace"
        assert os.listdir(place) == []

    def test_init_with_a_garbage_pointer_creates_no_store_of_that_name(
        self, ortet: Ortet, tmp_path: Path
    ) -> None:
        place = tmp_path / "work"
        place.mkdir()
        (place / ".ortet").write_text("garbage\n")
        ortet("status", cwd=place, code=4)
        ortet("init", cwd=place)
        assert os.listdir(place) == [".ortet"]
        assert (place / ".ortet").read_text() == f"{ortet.store}#work\n"

    def test_a_failed_init_leaves_no_workspace_behind(self, ortet: Ortet, tmp_path: Path) -> None:
        place = tmp_path / "work"
        (place / ".ortet").mkdir(parents=True)  # as good as read-only, for root too
        ortet("init", cwd=place, code=6)
        with open_hub(ortet.store) as hub:
            assert list(hub.workspaces.table.all()) == []

    def test_a_dropped_workspace_goes_on_with_its_branch(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        head = commit("first")
        for verb in ("status", "init"):
            ortet("drop", "proj", cwd=proj)
            assert ortet.json("log", cwd=proj)[0]["oid"] == head
            found = ortet.json(verb, cwd=proj)
            assert (found["name"], found["head"]) == ("proj", head)


class TestAnswers:
    @pytest.mark.parametrize(
        "words",
        [
            ["log", ""],
            ["show", ""],
            ["diff", ""],
            ["diff", "HEAD", ""],
            ["restore", ""],
            ["restore", "", "--to", "../out"],
            ["fork", ""],
            ["merge", ""],
            ["branch", "b", ""],
            ["tag", "t", ""],
            ["reflog", ""],
            ["export", "", "../x"],
            ["bisect", "start", "--good", ""],
            ["bisect", "good", ""],
        ],
    )
    def test_an_empty_name_is_none(
        self, ortet: Ortet, proj: Path, commit: Commit, words: list[str]
    ) -> None:
        commit("first")
        assert ortet.kind(*words, cwd=proj, code=2) == "bad_ref"

    def test_log_succeeds_with_closed_standard_streams(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        for end in (">&-", "2>&-", "<&-", ">&- 2>&- <&-"):
            script = f"{' '.join(ortet.argv('log'))} {end}"
            done = subprocess.run(
                ["sh", "-c", script], cwd=proj, env=ortet.env, capture_output=True, check=False
            )
            assert (done.returncode, done.stderr) == (0, b"")

    def test_verify_lists_every_problem_up_to_twenty(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        for number in range(30):
            (proj / f"noise{number}").write_bytes(os.urandom(150_000))
        commit("first")
        for file in (ortet.store / "local/tails").iterdir():
            data = bytearray(file.read_bytes())
            data[100_000::150_000] = bytes(len(data[100_000::150_000]))
            file.write_bytes(data)
        told = ortet("verify", "--json", cwd=proj, code=8)
        assert told.out == ""
        problems = told.error["details"]["report"]["problems"]
        lines = ortet("verify", cwd=proj, code=8).out.splitlines()
        assert len(lines) == min(len(problems), 21)
        if len(problems) > 20:
            assert lines[-1] == f"and {len(problems) - 20} more"

    def test_log_show_and_diff_before_the_first_commit_advise_to_commit(
        self, ortet: Ortet, proj: Path
    ) -> None:
        for verb in ("log", "show", "diff"):
            done = ortet(verb, cwd=proj, code=4)
            assert "no commit yet: run `ortet commit`" in done.err
            assert "branch:" not in done.err

    def test_taken_or_missing_names_are_refused_with_advice(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        ortet("branch", "feat", cwd=proj)
        said = ortet("branch", "feat", cwd=proj, code=5).err
        assert "there is a branch 'feat' already" in said
        assert "`ortet tag`" in ortet("tag", "-d", "nope", cwd=proj, code=4).err
        assert "always means" in ortet("branch", "HEAD", cwd=proj, code=2).err
        assert "FILE is missing" in ortet("export", "HEAD", cwd=proj, code=2).err
        assert "no commit comes before" in ortet("rewind", cwd=proj, code=4).err
        assert "name one of its forks" in ortet("land", cwd=proj, code=2).err

    def test_misspelt_option_is_not_taken_for_a_command(self, ortet: Ortet, proj: Path) -> None:
        assert ortet.kind("run", "--timout", "5", "echo", "hi", cwd=proj, code=2) == "bad_usage"
        assert ortet("run", "echo", "-n", "--json", cwd=proj).out == "--json"
        assert ortet("run", "--", "echo", "hi", cwd=proj).out == "hi\n"

    @pytest.mark.parametrize("parts", ["mind", "files,mind", ""])
    def test_restore_with_invalid_parts_suggests_only_files(
        self, ortet: Ortet, proj: Path, commit: Commit, parts: str
    ) -> None:
        commit("first")
        assert "--only files" in ortet("restore", "HEAD", "--only", parts, cwd=proj, code=2).err

    @pytest.mark.parametrize("verb", ["merge", "land"])
    def test_a_merge_conflict_suggests_the_favor_option(
        self, ortet: Ortet, proj: Path, commit: Commit, verb: str
    ) -> None:
        commit("first")
        ortet("fork", cwd=proj)
        ortet("run", "-w", "proj/1", "echo theirs > a.txt", cwd=proj)
        (proj / "a.txt").write_text("ours\n")
        said = ortet(verb, "proj/1", cwd=proj, code=5).err
        assert "--favor ours" in said and "favor='" not in said

    def test_error_before_the_options_are_parsed_is_json_if_asked(
        self, ortet: Ortet, proj: Path
    ) -> None:
        done = ortet("-C", str(proj / "nowhere"), "status", "--json", cwd=proj, code=4)
        assert json.loads(done.err)["kind"] == "no_directory"

    def test_paths_are_relative_to_the_current_directory(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        assert ortet("show", "HEAD", "main.py", cwd=proj / "src").out == "print('hi')\n"
        assert ortet("show", "HEAD", "../a.txt", cwd=proj / "src").out == "one\n"
        assert ortet("show", "HEAD", "src/main.py", cwd=proj).out == "print('hi')\n"

    def test_restoring_the_same_path_twice_changes_nothing(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        head = commit("second", **{"a.txt": "two\n"})
        (proj / "a.txt").write_text("not committed\n")
        for _ in range(2):
            assert ortet.json("restore", "HEAD~1", "a.txt", cwd=proj)["oid"] == head
            assert ortet("show", "HEAD@{1}", "a.txt", cwd=proj).out == "not committed\n"

    def test_bisect_tests_the_bad_end_first(self, ortet: Ortet, proj: Path, commit: Commit) -> None:
        good = commit("first")
        for number in range(4):
            commit(str(number), **{"a.txt": str(number)})
        done = ortet("bisect", "run", "--good", good, "--json", "--", "true", cwd=proj, code=2)
        assert done.error["kind"] == "not_bad"
        assert "125" in ortet("bisect", "run", "--help", cwd=proj).out

"""log, show, diff, branch, tag and reflog, through a real process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.fixtures.commands import Commit, Ortet


class TestLog:
    def test_log_lists_the_newest_commit_first(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        first = commit("first")
        second = commit("second", **{"a.txt": "two\n"})
        found = ortet.json("log", cwd=proj)
        assert [info["oid"] for info in found] == [second, first]
        assert found[0].keys() >= {"oid", "state", "parents", "message", "time", "author", "refs"}
        assert found[0]["refs"] == ["proj"]
        lines = ortet("log", cwd=proj).out.splitlines()
        assert lines[0].startswith(second[:12]) and lines[0].endswith("(proj) second")
        assert lines[1].endswith("first")

    def test_log_accepts_a_limit_and_a_ref(self, ortet: Ortet, proj: Path, commit: Commit) -> None:
        first = commit("first")
        commit("second", **{"a.txt": "two\n"})
        assert len(ortet.json("log", "-n", "1", cwd=proj)) == 1
        for ref in ("HEAD~1", "proj^", first[:8], "HEAD@{1}"):
            assert [info["oid"] for info in ortet.json("log", ref, cwd=proj)] == [first]

    def test_log_graph_draws_forks_and_merges(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("base")
        ortet("fork", cwd=proj)
        ortet("run", "-w", "proj/1", "echo side > side.txt", cwd=proj)
        ortet("commit", "-w", "proj/1", "-m", "aside", cwd=proj)
        commit("ahead", **{"a.txt": "two\n"})
        ortet("merge", "proj/1", cwd=proj)
        lines = ortet("log", "--graph", cwd=proj).out.splitlines()
        assert lines[0].startswith("*  ") and lines[0].endswith("merge proj/1")
        assert lines[1] == "|\\"
        assert any(line.startswith(("| *", "* |")) for line in lines)
        assert lines[-1].startswith("*  ") and lines[-1].endswith("base")

    def test_log_ends_with_141_when_its_reader_closes_the_pipe(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("x" * 100_000)  # more than the pipe and our buffer hold
        for call in ("log", "log --json"):
            shell = f"{{ {' '.join(ortet.argv())} {call}; echo $? >&2; }} | true"
            done = subprocess.run(
                ["sh", "-c", shell], cwd=proj, env=ortet.env, capture_output=True, check=True
            )
            assert done.stderr == b"141\n"

    def test_log_before_the_first_commit_is_not_found(self, ortet: Ortet, proj: Path) -> None:
        assert ortet("log", "--json", cwd=proj, code=4).error["error"] == "not_found"


class TestShow:
    def test_show_prints_message_parent_and_changes_of_a_commit(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        first = commit("first")
        second = commit("title\n\nbody", **{"a.txt": "two\n"})
        out = ortet("show", cwd=proj).out
        assert f"commit {second}" in out and f"parent  {first}" in out
        assert "    title\n    \n    body\n" in out
        assert out.endswith("  M a.txt\n")
        found = ortet.json("show", "HEAD~1", cwd=proj)
        assert found["oid"] == first
        kinds = {change["path"]: change["kind"] for change in found["changes"]}
        assert kinds["a.txt"] == "added"

    def test_show_prints_a_file_of_a_commit(self, ortet: Ortet, proj: Path, commit: Commit) -> None:
        commit("first")
        (proj / "a.txt").write_bytes(b"\xff\0two")
        ortet("commit", "-q", cwd=proj)
        assert ortet("show", "HEAD~1", "a.txt", cwd=proj).out == "one\n"
        assert ortet("show", "HEAD", "./a.txt", cwd=proj).out == "\udcff\0two"
        assert ortet("show", "HEAD", "src/main.py", cwd=proj).out == "print('hi')\n"
        assert ortet.kind("show", "HEAD", "no", cwd=proj, code=4) == "no_path"
        assert (
            ortet("show", "HEAD", "src", "--json", cwd=proj, code=2).error["kind"] == "not_a_file"
        )


class TestDiff:
    def test_diff_without_refs_compares_the_working_files_with_the_head(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        assert ortet.json("diff", cwd=proj) == []
        (proj / "a.txt").write_text("two\n")
        (proj / "src" / "main.py").rename(proj / "main.py")
        found = {change["path"]: change for change in ortet.json("diff", cwd=proj)}
        assert found["a.txt"]["kind"] == "modified"
        assert found["main.py"]["old_path"] == "src/main.py"
        out = ortet("diff", cwd=proj).out
        assert "  M a.txt\n" in out and "  R src/main.py -> main.py\n" in out

    def test_diff_p_prints_a_unified_patch(self, ortet: Ortet, proj: Path, commit: Commit) -> None:
        commit("first")
        (proj / "a.txt").write_text("zero\none\tand\n")
        out = ortet("diff", "-p", cwd=proj).out
        assert "--- a/a.txt\n+++ b/a.txt\n" in out
        assert "+zero\n" in out and "-one\n" in out and "+one\tand\n" in out
        assert "patch" in ortet.json("diff", "-p", cwd=proj)[0]

    def test_diff_of_two_commits_lists_changes_in_both_directions(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        commit("second", **{"a.txt": "two\n", "b.txt": "new\n"})
        found = ortet.json("diff", "HEAD~1", "HEAD", cwd=proj)
        assert {change["path"] for change in found} == {"a.txt", "b.txt"}
        back = ortet.json("diff", "HEAD", "HEAD~1", cwd=proj)
        assert {change["kind"] for change in back} == {"modified", "removed"}
        assert ortet("diff", "HEAD~1", "HEAD", "--stat", cwd=proj).out == "1 added, 1 modified\n"
        assert ortet("diff", "HEAD", "HEAD", "--stat", cwd=proj).out == "no difference\n"

    def test_diff_patch_names_binary_files_and_directories(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        (proj / "empty").mkdir()
        (proj / "blob").write_bytes(b"\0\1\2")
        out = ortet("diff", "-p", cwd=proj).out
        assert "Binary file blob differs" in out
        assert "added: empty" in out


class TestBranch:
    def test_branches_are_listed_created_renamed_and_deleted(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        first = commit("first")
        second = commit("second", **{"a.txt": "two\n"})
        assert ortet.json("branch", "old", "HEAD~1", cwd=proj) == {"name": "old", "oid": first}
        found = {head["name"]: head for head in ortet.json("branch", cwd=proj)}
        assert found["proj"]["current"] and found["proj"]["oid"] == second
        assert found["proj"]["directory"] == str(proj) and found["old"]["directory"] is None
        ortet("branch", "-m", "old", "older", cwd=proj)
        assert {head["name"] for head in ortet.json("branch", cwd=proj)} == {"proj", "older"}
        assert ortet.json("branch", "-d", "older", cwd=proj) == {"deleted": "older", "oid": first}
        assert {head["name"] for head in ortet.json("branch", cwd=proj)} == {"proj"}
        assert ortet.json("log", "older@{1}", cwd=proj)[0]["oid"] == first

    def test_branch_marks_the_current_branch(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        oid = commit("first")
        ortet("branch", "aside", cwd=proj)
        lines = ortet("branch", cwd=proj).out.splitlines()
        assert lines[0].split()[:2] == ["aside", oid[:12]]
        assert lines[1].split()[:3] == ["*", "proj", oid[:12]]

    def test_branch_lists_a_workspace_without_a_commit(self, ortet: Ortet, proj: Path) -> None:
        found = ortet.json("branch", cwd=proj)
        assert [(head["name"], head["oid"]) for head in found] == [("proj", None)]

    def test_renaming_a_branch_renames_its_workspace(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        first = commit("first")
        ortet("branch", "-m", "proj", "trunk", cwd=proj)
        (proj / "a.txt").write_text("two\n")
        found = ortet.json("commit", "-m", "on trunk", cwd=proj)
        assert (found["name"], found["parents"]) == ("trunk", [first])

    def test_invalid_branch_operations_are_refused(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        ortet("branch", "aside", cwd=proj)
        assert (
            ortet("branch", "-d", "proj", "--json", cwd=proj, code=6).error["kind"]
            == "branch_in_use"
        )
        assert (
            ortet("branch", "-d", "none", "--json", cwd=proj, code=4).error["kind"] == "no_branch"
        )
        assert (
            ortet("branch", "-m", "aside", "proj", "--json", cwd=proj, code=5).error["kind"]
            == "name_taken"
        )
        assert ortet("branch", "aside", "--json", cwd=proj, code=5).error["error"] == "conflict"
        assert ortet.kind("branch", "a b", cwd=proj, code=2) == "bad_name"
        assert (
            ortet("branch", "x", "-d", "aside", "--json", cwd=proj, code=2).error["kind"]
            == "bad_usage"
        )


class TestTag:
    def test_tags_are_listed_created_and_deleted(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        first = commit("first")
        commit("second", **{"a.txt": "two\n"})
        ortet("tag", "green", "HEAD~1", cwd=proj)
        assert [tag["name"] for tag in ortet.json("tag", cwd=proj)] == ["green"]
        assert ortet("tag", cwd=proj).out.split()[:2] == ["green", first[:12]]
        assert ortet.json("log", "green", cwd=proj)[0]["refs"] == ["tag:green"]
        ortet("tag", "-d", "green", cwd=proj)
        assert ortet.json("tag", cwd=proj) == []
        assert ortet("tag", "-d", "green", "--json", cwd=proj, code=4).error["error"] == "not_found"


class TestReflog:
    def test_reflog_lists_every_move_of_a_branch(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        first = commit("first")
        second = commit("second", **{"a.txt": "two\n"})
        ortet("rewind", cwd=proj)
        found = ortet.json("reflog", cwd=proj)
        assert [(op["oid"], op["verb"]) for op in found] == [
            (first, "rewind"),
            (second, "commit"),
            (first, "commit"),
        ]
        assert found[1]["ref"] == "proj@{1}"
        assert ortet("reflog", "-n", "1", cwd=proj).out.split()[:2] == ["proj@{0}", first[:12]]
        assert ortet("reflog", "proi", "--json", cwd=proj, code=4).error["details"]["near"] == [
            "proj"
        ]


class TestRefs:
    @pytest.mark.parametrize("verb", ["log", "show", "restore", "merge", "fork", "diff"])
    def test_an_unknown_ref_suggests_a_similar_name(
        self, ortet: Ortet, proj: Path, commit: Commit, verb: str
    ) -> None:
        commit("first")
        done = ortet(verb, "proi", cwd=proj, code=4)
        assert "did you mean proj?" in done.err
        assert done.out == ""

    def test_an_id_prefix_needs_at_least_four_digits(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        oid = commit("first")
        assert ortet.kind("show", oid[:3], cwd=proj, code=4) == "no_ref"
        assert ortet.json("show", oid[:4], cwd=proj)["oid"] == oid

    def test_outside_a_workspace_names_still_work(
        self, ortet: Ortet, proj: Path, commit: Commit, tmp_path: Path
    ) -> None:
        oid = commit("first")
        assert ortet.json("log", "proj", cwd=tmp_path)[0]["oid"] == oid
        assert ortet.json("log", cwd=tmp_path)[0]["oid"] == oid  # there is only one branch
        assert os.listdir(tmp_path / "home") != []

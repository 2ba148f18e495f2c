"""restore, rewind, fork, merge, land and drop, through a real process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.fixtures.commands import Commit, Ortet


class TestRestore:
    def test_restore_moves_the_whole_workspace_and_back(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        first = commit("first")
        commit("second", **{"a.txt": "two\n", "b.txt": "new\n"})
        (proj / "c.txt").write_text("not committed\n")
        found = ortet.json("restore", first, cwd=proj)
        assert (found["oid"], found["losses"]) == (first, [])
        assert found["removed"] >= 2
        assert (proj / "a.txt").read_text() == "one\n"
        assert not (proj / "b.txt").exists() and not (proj / "c.txt").exists()
        assert (proj / ".ortet").exists()
        ortet("restore", "HEAD@{1}", cwd=proj)
        assert (proj / "c.txt").read_text() == "not committed\n"

    def test_restore_from_a_subdirectory_restores_the_whole_workspace(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        commit("second", **{"a.txt": "two\n"})
        ortet("-C", "src", "restore", "HEAD~1", cwd=proj)
        assert (proj / "a.txt").read_text() == "one\n"

    def test_restore_of_some_paths_changes_only_those_paths(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        (proj / "src" / "main.py").write_text("broken\n")
        second = commit("second", **{"a.txt": "two\n"})
        found = ortet.json("-C", "src", "restore", "HEAD~1", "main.py", cwd=proj)
        assert found["oid"] == second
        assert (proj / "src" / "main.py").read_text() == "print('hi')\n"
        assert (proj / "a.txt").read_text() == "two\n"
        done = ortet("restore", "HEAD~1", "../other", "--json", cwd=proj, code=2)
        assert done.error["kind"] == "bad_path"

    def test_restore_to_writes_a_new_directory(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        oid = commit("first")
        target = proj.parent / "out"
        found = ortet.json("restore", oid, "--to", str(target), cwd=proj)
        assert (found["oid"], found["path"]) == (oid, str(target))
        assert sorted(os.listdir(target)) == ["a.txt", "src"]
        assert target.stat().st_mtime_ns == proj.stat().st_mtime_ns
        ortet("-C", "src", "restore", "HEAD", "--to", "../../second", cwd=proj)
        assert (proj.parent / "second" / "a.txt").read_text() == "one\n"

    def test_restore_to_a_directory_that_is_not_empty_is_refused(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        target = proj.parent / "out"
        target.mkdir()
        (target / "mine").write_text("mine\n")
        done = ortet("restore", "HEAD", "--to", str(target), cwd=proj, code=2)
        assert str(target) in done.err
        assert os.listdir(target) == ["mine"]

    def test_restore_only_files_restores_files_and_refuses_a_missing_session(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        commit("second", **{"a.txt": "two\n"})
        done = ortet("restore", "HEAD~1", "--only", "mind", "--json", cwd=proj, code=2)
        assert done.error["kind"] == "nothing_to_restore"
        ortet("restore", "HEAD~1", "--only", "files", cwd=proj)
        assert (proj / "a.txt").read_text() == "one\n"

    def test_a_restored_workspace_has_the_same_state_id(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        (proj / os.fsdecode(b"caf\xe9")).symlink_to("nowhere")
        state = ortet.json("commit", cwd=proj)["state"]
        copy = proj.parent / "copy"
        ortet("restore", "HEAD", "--to", str(copy), cwd=proj)
        ortet("init", cwd=copy)
        assert ortet.json("commit", cwd=copy)["state"] == state


class TestRewind:
    def test_rewind_goes_back_by_a_number_of_commits(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        first = commit("first")
        commit("second", **{"a.txt": "two\n"})
        commit("third", **{"a.txt": "three\n"})
        assert ortet.json("rewind", "2", cwd=proj)["oid"] == first
        assert (proj / "a.txt").read_text() == "one\n"
        ortet("restore", "HEAD@{1}", cwd=proj)
        assert ortet("rewind", cwd=proj).out.startswith("[proj ")
        assert (proj / "a.txt").read_text() == "two\n"

    @pytest.mark.parametrize(("count", "code"), [("5", 4), ("0", 2), ("-1", 2)])
    def test_rewind_beyond_the_first_commit_is_refused(
        self, ortet: Ortet, proj: Path, commit: Commit, count: str, code: int
    ) -> None:
        commit("first")
        ortet("rewind", "--", count, cwd=proj, code=code)
        assert (proj / "a.txt").read_text() == "one\n"


class TestForks:
    def test_a_fork_can_be_changed_and_landed(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("base")
        copies = ortet.json("fork", "-n", "2", cwd=proj)
        assert [copy["name"] for copy in copies] == ["proj/1", "proj/2"]
        ortet("run", "-w", "proj/1", "--", "sh", "-c", "echo one-better > a.txt", cwd=proj)
        ortet("run", "-w", "proj/2", "echo two-better > a.txt", cwd=proj)
        assert (proj / "a.txt").read_text() == "one\n"
        assert ortet("run", "-w", "proj/2", "cat a.txt", cwd=proj).out == "two-better\n"
        changes = ortet.json("status", "-w", "proj/1", cwd=proj)["changes"]
        assert [change["path"] for change in changes] == ["a.txt"]
        assert "+one-better" in ortet("diff", "-p", "-w", "proj/1", cwd=proj).out
        found = ortet.json("land", "proj/1", cwd=proj)
        assert (found["name"], found["written"]) == ("proj/1", 1)
        assert (proj / "a.txt").read_text() == "one-better\n"
        done = ortet("land", "-w", "proj/2", "--json", cwd=proj, code=5)
        assert done.error["kind"] == "merge_conflict"
        assert done.error["details"]["conflicts"][0]["path"] == "a.txt"
        assert (proj / "a.txt").read_text() == "one-better\n"

    def test_fork_at_an_earlier_commit_has_its_files(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        first = commit("first")
        second = commit("second", **{"a.txt": "two\n"})
        (proj / "a.txt").write_text("not committed\n")
        copies = ortet.json("fork", "HEAD~1", cwd=proj)
        assert [copy["head"] for copy in copies] == [first]
        assert ortet("run", "-w", "proj/1", "cat a.txt", cwd=proj).out == "one\n"
        assert ortet.json("log", cwd=proj)[0]["oid"] == second

    def test_rewind_and_commit_in_a_fork(self, ortet: Ortet, proj: Path, commit: Commit) -> None:
        base = commit("base")
        ortet("fork", cwd=proj)
        ortet("run", "-w", "proj/1", "echo x > a.txt", cwd=proj)
        made = ortet.json("commit", "-w", "proj/1", "-m", "x", cwd=proj)
        assert (made["name"], made["parents"]) == ("proj/1", [base])
        assert ortet.json("rewind", "-w", "proj/1", cwd=proj)["oid"] == base
        assert ortet("run", "-w", "proj/1", "cat a.txt", cwd=proj).out == "one\n"
        ortet("restore", "-w", "proj/1", made["oid"], cwd=proj)
        assert ortet("run", "-w", "proj/1", "cat a.txt", cwd=proj).out == "x\n"

    def test_drop_keeps_the_branch_unless_asked_to_delete_it(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        base = commit("base")
        ortet("fork", "-n", "2", cwd=proj)
        ortet("drop", "proj/1", cwd=proj)
        ortet("drop", "proj/2", "--branch", cwd=proj)
        assert (
            ortet("run", "-w", "proj/1", "--json", "true", cwd=proj, code=4).error["kind"]
            == "no_workspace"
        )
        assert ortet.json("log", "proj/1", cwd=proj)[0]["oid"] == base
        ortet("log", "proj/2", cwd=proj, code=4)

    @pytest.mark.parametrize("count", ["0", "-3", "many"])
    def test_fork_with_an_invalid_number_is_refused(
        self, ortet: Ortet, proj: Path, count: str
    ) -> None:
        assert ortet.kind("fork", "-n", count, cwd=proj, code=2) == "bad_usage"

    def test_land_of_a_workspace_in_place_is_refused(self, ortet: Ortet, proj: Path) -> None:
        assert ortet.kind("land", cwd=proj, code=2) == "not_private"


class TestMerge:
    def _diverge(self, ortet: Ortet, proj: Path, commit: Commit) -> None:
        commit("base", **{"poem": "a\nb\nc\nd\ne\n"})
        ortet("fork", cwd=proj)
        ortet("run", "-w", "proj/1", "sed -i s/e/E/ poem", cwd=proj)
        ortet("commit", "-w", "proj/1", "-m", "loud end", cwd=proj)

    def test_merge_combines_changes_to_different_lines(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        self._diverge(ortet, proj, commit)
        head = commit("loud start", poem="A\nb\nc\nd\ne\n")
        found = ortet.json("merge", "proj/1", "-m", "both", cwd=proj)
        assert (proj / "poem").read_text() == "A\nb\nc\nd\nE\n"
        assert found["conflicts"] == []
        info = ortet.json("show", cwd=proj)
        assert (info["oid"], info["message"], info["parents"][0]) == (found["oid"], "both", head)

    def test_conflicts_are_listed_and_nothing_is_touched(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        self._diverge(ortet, proj, commit)
        head = commit("another end", poem="a\nb\nc\nd\nX\n")
        dry = ortet.json("merge", "proj/1", "--dry-run", cwd=proj)
        assert [conflict["path"] for conflict in dry["conflicts"]] == ["poem"]
        done = ortet("merge", "proj/1", cwd=proj, code=5)
        assert "  poem: both sides changed it" in done.err
        assert (proj / "poem").read_text() == "a\nb\nc\nd\nX\n"
        assert ortet.json("log", cwd=proj)[0]["oid"] == head
        ortet("merge", "proj/1", "--favor", "theirs", cwd=proj)
        assert (proj / "poem").read_text() == "a\nb\nc\nd\nE\n"

    def test_merge_of_an_ancestor_returns_the_head(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        oid = commit("base")
        ortet("branch", "old", cwd=proj)
        assert ortet.json("merge", "old", cwd=proj)["oid"] == oid

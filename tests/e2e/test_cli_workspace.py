"""init, status, commit and run, through a real process."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.fixtures.commands import Commit, Ortet


class TestInit:
    def test_init_writes_one_file_and_keeps_the_directory_mtime(
        self, ortet: Ortet, tmp_path: Path
    ) -> None:
        place = tmp_path / "site"
        place.mkdir()
        os.utime(place, ns=(10**18, 1_234_567_890_123_456_789))
        done = ortet("init", cwd=place)
        assert os.listdir(place) == [".ortet"]
        assert place.stat().st_mtime_ns == 1_234_567_890_123_456_789
        assert "site" in done.out
        assert (place / ".ortet").read_text() == f"{ortet.store}#site\n"

    def test_init_json_shows_the_workspace_and_store(self, ortet: Ortet, tmp_path: Path) -> None:
        place = tmp_path / "site"
        place.mkdir()
        assert ortet.json("init", cwd=place) == {
            "name": "site",
            "directory": str(place),
            "store": str(ortet.store),
            "head": None,
        }

    def test_init_again_continues_the_same_history(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        oid = commit("first")
        (proj / ".ortet").unlink()
        assert ortet.json("init", cwd=proj)["head"] == oid
        assert [info["oid"] for info in ortet.json("log", cwd=proj)] == [oid]

    def test_init_accepts_a_store_and_a_name(self, ortet: Ortet, tmp_path: Path) -> None:
        place = tmp_path / "work"
        place.mkdir()
        store = tmp_path / "odd #store"
        found = ortet.json("init", "--store", str(store), "--name", "fix/login", cwd=place)
        assert (found["name"], found["store"]) == ("fix/login", str(store))
        assert ortet.json("commit", "-m", "x", cwd=place)["name"] == "fix/login"
        assert (store / "catalog.db").exists()
        assert not ortet.store.exists()

    def test_init_refuses_a_name_in_use(self, ortet: Ortet, proj: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        other.mkdir()
        done = ortet("init", "--name", "proj", "--json", cwd=other, code=5)
        assert done.error["kind"] == "name_taken"
        assert os.listdir(other) == []

    def test_git_does_not_see_the_pointer(self, ortet: Ortet, tmp_path: Path) -> None:
        repository = tmp_path / "repository"
        (repository / "part").mkdir(parents=True)
        subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
        ortet("init", cwd=repository)
        ortet("init", cwd=repository)
        ortet("-C", "part", "init", cwd=repository)
        exclude = (repository / ".git" / "info" / "exclude").read_text().splitlines()
        assert exclude.count("/.ortet") == 1
        status = subprocess.run(
            ["git", "status", "--porcelain", "-uall"],
            cwd=repository,
            capture_output=True,
            check=True,
        )
        assert status.stdout == b""

    def test_a_store_inside_the_workspace_is_refused(self, ortet: Ortet, tmp_path: Path) -> None:
        place = tmp_path / "work"
        place.mkdir()
        done = ortet("init", "--store", "history", "--json", cwd=place, code=2)
        assert done.error["kind"] == "store_in_workspace"
        assert not (place / ".ortet").exists()

    @pytest.mark.parametrize("text", ["", "two\nlines\n"])
    def test_a_broken_pointer_is_reported_and_repaired_by_init(
        self, ortet: Ortet, proj: Path, commit: Commit, text: str
    ) -> None:
        oid = commit("kept")
        (proj / ".ortet").write_text(text)
        done = ortet("commit", "-m", "x", "--json", cwd=proj, code=2)
        assert done.error["kind"] == "bad_pointer"
        assert "ortet init" in done.error["message"]
        ortet("init", cwd=proj)
        assert ortet.json("log", cwd=proj)[0]["oid"] == oid


class TestWhichWorkspace:
    def test_commands_outside_of_a_workspace_advise_to_init(
        self, ortet: Ortet, tmp_path: Path
    ) -> None:
        for verb in (["commit", "-m", "x"], ["status"], ["run", "true"], ["fork"], ["reflog"]):
            done = ortet("--json", *verb, cwd=tmp_path, code=4)
            assert done.error["kind"] in ("no_workspace", "no_store")
            assert "ortet init" in done.error["message"]

    def test_commands_work_in_a_subdirectory_of_the_workspace(
        self, ortet: Ortet, proj: Path
    ) -> None:
        found = ortet.json("-C", "src", "commit", "-m", "from below", cwd=proj)
        assert found["name"] == "proj"
        assert found["changed"] >= 3

    def test_a_moved_directory_keeps_its_history(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        first = commit("before the move")
        moved = proj.with_name("elsewhere")
        proj.rename(moved)
        (moved / "a.txt").write_text("two\n")
        found = ortet.json("commit", "-m", "after the move", cwd=moved)
        assert found["name"] == "proj"
        assert found["parents"] == [first]

    def test_a_copied_directory_gets_its_own_workspace(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        first = commit("original")
        copy = proj.with_name("copy")
        shutil.copytree(proj, copy, symlinks=True)
        found = ortet.json("commit", "-m", "in the copy", cwd=copy)
        assert found["name"] == "copy"
        assert found["parents"] == []
        assert ortet.json("log", cwd=proj)[0]["oid"] == first
        shutil.rmtree(proj)  # with the original gone the copy is still itself
        assert ortet.json("log", cwd=copy)[0]["oid"] == found["oid"]

    def test_option_w_names_a_workspace_from_anywhere(
        self, ortet: Ortet, proj: Path, tmp_path: Path
    ) -> None:
        found = ortet.json("commit", "-m", "x", "-w", "proj", cwd=tmp_path)
        assert found["changed"] >= 3
        done = ortet("commit", "-w", "nobody", "--json", cwd=tmp_path, code=4)
        assert done.error["kind"] == "no_workspace"

    def test_ortet_url_chooses_the_store_of_init(self, ortet: Ortet, tmp_path: Path) -> None:
        place = tmp_path / "work"
        place.mkdir()
        url = {"ORTET_URL": str(tmp_path / "chosen")}
        ortet("init", cwd=place, env=url)
        ortet("commit", "-m", "x", cwd=place)
        assert (tmp_path / "chosen" / "catalog.db").exists()
        assert not ortet.store.exists()


class TestCommit:
    def test_commit_json_shows_ids_message_author_and_parents(
        self, ortet: Ortet, proj: Path, tmp_path: Path
    ) -> None:
        found = ortet("-C", str(proj), "commit", "-m", "first", "--json", cwd=tmp_path).data
        assert len(found["oid"]) == len(found["state"]) == 64
        assert (found["message"], found["author"], found["parents"]) == ("first", "tester", [])
        assert found["created"] is True
        assert found["losses"] == []

    def test_nothing_changed_returns_the_head(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        first = commit("first")
        found = ortet.json("commit", "-m", "again", cwd=proj)
        assert (found["oid"], found["created"], found["changed"]) == (first, False, 0)
        assert "nothing changed" in ortet("commit", "-m", "again", cwd=proj).out

    def test_commit_prints_one_line_with_id_and_counts(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        (proj / "a.txt").write_text("two\n")
        done = ortet("commit", "-m", "more\n\nand why", cwd=proj)
        head = ortet.json("log", cwd=proj)[0]
        assert done.out.startswith(f"[proj {head['oid'][:12]}] more  (1 changed, ")
        assert head["message"] == "more\n\nand why"
        assert done.err == ""

    def test_a_message_is_optional(self, ortet: Ortet, proj: Path) -> None:
        assert ortet.json("commit", cwd=proj)["message"] == ""

    def test_a_message_in_another_encoding_is_kept_readable(self, ortet: Ortet, proj: Path) -> None:
        argv = [*map(os.fsencode, ortet.argv("commit", "--json", "-m")), b"caf\xe9"]
        subprocess.run(argv, cwd=proj, env=ortet.env, check=True, capture_output=True)
        assert ortet.json("log", cwd=proj)[0]["message"] == "caf\ufffd"

    def test_the_pointer_file_is_not_committed(self, ortet: Ortet, proj: Path) -> None:
        first = ortet.json("commit", "-m", "x", cwd=proj)["state"]
        (proj / ".ortet").touch()
        assert ortet.json("commit", "-m", "y", cwd=proj)["state"] == first
        assert ".ortet" not in ortet("show", cwd=proj).out

    def test_two_concurrent_commits_lose_nothing(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("base")
        (proj / "a.txt").write_text("two\n")
        argv = ortet.argv("commit", "-m", "race", "--json")
        pair = [
            subprocess.Popen(
                argv, cwd=proj, env=ortet.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for _ in range(2)
        ]
        ends = [(process.communicate(), process.returncode) for process in pair]
        codes = sorted(code for _, code in ends)
        assert codes in ([0, 0], [0, 5]), ends
        assert ortet.json("status", cwd=proj)["clean"] is True
        assert len(ortet.json("log", cwd=proj)) == 2
        assert ortet.json("verify", cwd=proj)["ok"] is True


class TestStatus:
    def test_status_before_the_first_commit_lists_every_file(
        self, ortet: Ortet, proj: Path
    ) -> None:
        found = ortet.json("status", cwd=proj)
        assert (found["name"], found["head"], found["clean"]) == ("proj", None, False)
        assert {change["path"] for change in found["changes"]} >= {"a.txt", "src/main.py"}

    def test_status_lists_modified_added_and_removed_files(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        oid = commit("first")
        assert ortet.json("status", cwd=proj)["clean"] is True
        (proj / "a.txt").write_text("changed\n")
        (proj / "new").write_text("")
        (proj / "src" / "main.py").unlink()
        found = ortet.json("status", cwd=proj)
        kinds = {change["path"]: change["kind"] for change in found["changes"]}
        assert kinds["a.txt"] == "modified"
        assert kinds["new"] == "added"
        assert kinds["src/main.py"] == "removed"
        lines = ortet("status", cwd=proj).out.splitlines()
        assert lines[0] == f"proj (folder), at {oid[:12]} first"
        assert "  M a.txt" in lines
        assert "  D src/main.py" in lines

    def test_status_escapes_file_names_that_are_not_utf8(self, ortet: Ortet, proj: Path) -> None:
        (proj / os.fsdecode(b"caf\xe9")).write_text("")
        (proj / "esc\x1b[31m\nape").write_text("")
        out = ortet("status", cwd=proj).out
        assert "caf\\xe9" in out
        assert "esc\\x1b[31m\\nape" in out
        paths = {change["path"] for change in ortet.json("status", cwd=proj)["changes"]}
        assert {os.fsencode(path) for path in paths} >= {b"caf\xe9", b"esc\x1b[31m\nape"}


class TestRun:
    def test_run_passes_output_and_exit_code_on(self, ortet: Ortet, proj: Path) -> None:
        done = ortet("run", "--", "sh", "-c", "echo out; echo err >&2; exit 3", cwd=proj, code=3)
        assert (done.out, done.err) == ("out\n", "err\n")

    def test_run_passes_a_single_argument_to_the_shell(self, ortet: Ortet, proj: Path) -> None:
        assert ortet("run", "cat a.txt | tr o O", cwd=proj).out == "One\n"

    def test_run_json_returns_exit_code_and_output(self, ortet: Ortet, proj: Path) -> None:
        done = ortet("run", "--json", "--", "sh", "-c", "echo hi; exit 4", cwd=proj, code=4)
        assert (done.data["exit_code"], done.data["stdout"]) == (4, "hi\n")
        assert done.data["timed_out"] is False

    def test_options_after_the_command_belong_to_the_command(
        self, ortet: Ortet, proj: Path
    ) -> None:
        assert ortet("run", "echo", "--json", "-q", cwd=proj).out == "--json -q\n"

    def test_run_starts_in_the_workspace_root_with_the_given_environment(
        self, ortet: Ortet, proj: Path
    ) -> None:
        done = ortet("-C", "src", "run", "--env", "X=a=b", "echo $X; pwd", cwd=proj)
        assert done.out.splitlines() == ["a=b", str(proj)]
        assert ortet("run", "--cwd", "src", "pwd", cwd=proj).out == f"{proj / 'src'}\n"
        assert (
            ortet("run", "--env", "X", "--json", "true", cwd=proj, code=2).error["kind"]
            == "bad_env"
        )

    def test_a_timeout_ends_with_124(self, ortet: Ortet, proj: Path) -> None:
        done = ortet("run", "--timeout", "0.2", "sleep 60 & sleep 60", cwd=proj, code=124)
        assert "killed after 0.2 s" in done.err

    def test_run_passes_stdin_only_on_request(self, ortet: Ortet, proj: Path) -> None:
        assert ortet("run", "-i", "cat", cwd=proj, stdin=b"given").out == "given"
        assert ortet("run", "cat", cwd=proj, stdin=b"kept").out == ""

    def test_run_of_a_missing_program_ends_with_127(self, ortet: Ortet, proj: Path) -> None:
        done = ortet("run", "--", "no-such-program", "x", cwd=proj, code=127)
        assert "no-such-program" in done.err

    def test_run_passes_binary_output_on(self, ortet: Ortet, proj: Path) -> None:
        assert ortet("run", r"printf '\377\000x'", cwd=proj).out == "\udcff\0x"

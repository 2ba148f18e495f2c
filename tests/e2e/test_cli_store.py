"""verify, sweep, export, import, stats and doctor, through a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures.commands import Commit, Ortet

import ortet as library


def packs(ortet: Ortet) -> list[Path]:
    return [*ortet.store.glob("bucket/**/*.pack"), *ortet.store.glob("local/tails/*.tail")]


class TestVerify:
    def test_verify_of_a_sound_store_reports_ok(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        found = ortet.json("verify", cwd=proj)
        assert found["ok"] is True and found["problems"] == []
        assert ortet("verify", cwd=proj).out.startswith("sound: ")

    def test_verify_of_a_damaged_store_ends_with_exit_code_8(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        (proj / "noise").write_bytes(os.urandom(50_000))
        commit("first")
        for file in packs(ortet):
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 0xFF
            file.write_bytes(data)
        done = ortet("verify", "--json", cwd=proj, code=8)
        assert done.error["error"] == "corrupt"


class TestSweep:
    def test_sweep_keeps_recent_objects_and_the_store_stays_sound(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("first")
        (proj / "noise").write_bytes(os.urandom(400_000))
        ortet("fork", cwd=proj)
        ortet("drop", "proj/1", "--branch", cwd=proj)
        (proj / "noise").unlink()
        dry = ortet.json("sweep", "--dry-run", "--expire", "0s", cwd=proj)
        assert dry["dry_run"] is True
        found = ortet.json("sweep", "--expire", "30d", cwd=proj)
        assert found["removed"] == 0
        assert ortet.json("verify", cwd=proj)["ok"] is True
        assert ortet("sweep", cwd=proj).out.startswith("freed ")

    def test_sweep_with_an_invalid_age_is_refused(self, ortet: Ortet, proj: Path) -> None:
        done = ortet("sweep", "--expire", "soon", "--json", cwd=proj, code=2)
        assert done.error["kind"] == "bad_age"


class TestBundle:
    def test_export_and_import_copy_branches_to_another_store(
        self, ortet: Ortet, proj: Path, commit: Commit, tmp_path: Path
    ) -> None:
        commit("first")
        head = commit("second", **{"a.txt": "two\n"})
        ortet("tag", "v1", "HEAD~1", cwd=proj)
        ortet("export", "HEAD", "v1", "HEAD~1", "../work.bundle", cwd=proj)
        second = {"ORTET_URL": str(tmp_path / "second")}
        done = ortet("import", "work.bundle", "--json", cwd=tmp_path, env=second)
        assert done.data["branches"]["proj"] == head
        ortet("restore", "proj", "--to", "out", cwd=tmp_path, env=second)
        assert (tmp_path / "out" / "a.txt").read_text() == "two\n"
        ortet("verify", cwd=tmp_path, env=second)
        again = ortet("import", "work.bundle", "--json", cwd=tmp_path, env=second)
        assert again.data == done.data

    def test_import_numbers_a_branch_name_that_is_in_use(
        self, ortet: Ortet, proj: Path, commit: Commit, tmp_path: Path
    ) -> None:
        first = commit("first")
        ortet("export", "proj", "work.bundle", cwd=proj)
        commit("second", **{"a.txt": "two\n"})
        found = ortet.json("import", "work.bundle", cwd=proj)
        assert found["branches"] == {"proj-2": first}

    def test_import_of_a_damaged_bundle_changes_nothing(
        self, ortet: Ortet, proj: Path, commit: Commit, tmp_path: Path
    ) -> None:
        commit("first")
        ortet("export", "HEAD", str(tmp_path / "work.bundle"), cwd=proj)
        data = bytearray((tmp_path / "work.bundle").read_bytes())
        data[len(data) // 2] ^= 0xFF
        (tmp_path / "work.bundle").write_bytes(data)
        second = {"ORTET_URL": str(tmp_path / "second")}
        ortet("import", "work.bundle", cwd=tmp_path, env=second, code=8)
        assert ortet("branch", "--json", cwd=tmp_path, env=second).data == []

    def test_import_of_a_missing_file_is_refused(self, ortet: Ortet, proj: Path) -> None:
        done = ortet("import", "nothing", "--json", cwd=proj, code=4)
        assert "nothing" in done.error["message"]


class TestStats:
    def test_stats_counts_objects(self, ortet: Ortet, proj: Path, commit: Commit) -> None:
        commit("first")
        found = ortet.json("stats", cwd=proj)
        assert found["store"] == str(ortet.store)
        assert found["objects"] > 3


class TestDoctor:
    def test_doctor_lists_the_capabilities_of_this_host(self, ortet: Ortet, proj: Path) -> None:
        found = ortet.json("doctor", cwd=proj)
        names = {line["name"] for line in found["capabilities"]}
        assert names
        for line in found["capabilities"]:
            assert line["ok"] or line["fix"]
        assert ortet("doctor", cwd=proj).out

    def test_doctor_clean_removes_leftovers_of_crashes(self, ortet: Ortet, proj: Path) -> None:
        ortet("fork", cwd=proj)
        ortet("drop", "proj/1", "--branch", cwd=proj)
        home = ortet.store / "local" / "machines" / ("0" * 32)
        (home / "upper").mkdir(parents=True)
        found = ortet.json("doctor", cwd=proj)
        assert [thing["path"] for thing in found["leftovers"]] == [str(home)]
        assert "ortet doctor --clean" in ortet("doctor", cwd=proj).err
        found = ortet.json("doctor", "--clean", cwd=proj)
        assert found["cleaned"] and found["layers_removed"] >= 1
        assert not home.exists()
        assert ortet.json("doctor", cwd=proj)["leftovers"] == []
        assert ortet("run", "cat a.txt", cwd=proj).out == "one\n"

    def test_doctor_works_without_a_store(self, ortet: Ortet, tmp_path: Path) -> None:
        assert ortet.json("doctor", cwd=tmp_path)["capabilities"]
        assert not ortet.store.exists()


@pytest.mark.parametrize("way", ["open", "sweep"])
def test_what_a_killed_restore_left_beside_its_target_is_removed(
    ortet: Ortet, proj: Path, way: str
) -> None:
    oid = ortet.json("commit", "-m", "first", cwd=proj)["oid"]

    def left() -> list[str]:
        return [path.name for path in proj.parent.iterdir() if path.name.startswith(".ortet.stage")]

    with library.open(ortet.store) as hub:
        program = "import sys, ortet; ortet.open(sys.argv[1]).restore(sys.argv[2], sys.argv[3])"
        done = subprocess.run(
            [sys.executable, "-c", program, str(ortet.store), oid, str(proj.parent / "new")],
            env={**os.environ, "ORTET_FAULT": "materialise.built:kill:1"},
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        assert len(left()) == 1
        if way == "sweep":
            hub.sweep()
        else:
            ortet("log", cwd=proj)
        assert left() == []
        assert not (proj.parent / "new").exists()
        hub.restore(oid, proj.parent / "new")
        assert (proj.parent / "new" / "a.txt").read_text() == "one\n"
        assert os.listdir(ortet.store / "local" / "restores") == []

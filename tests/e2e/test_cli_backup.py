"""The commands backup, repair and the options of verify."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.commands import Commit, Ortet


def test_backup_and_its_verification(
    ortet: Ortet, proj: Path, commit: Commit, tmp_path: Path
) -> None:
    commit("one", a="1")
    report = ortet.json("backup", str(tmp_path / "backup"), cwd=proj)
    assert report["copied"] > 0
    checked = ortet.json("backup", "verify", str(tmp_path / "backup"), cwd=proj)
    assert checked["ok"]
    assert checked["commits"] == 1
    assert ortet.kind("backup", "verify", str(proj), cwd=proj, code=2) == "not_a_backup"


def test_repair_brings_a_lost_catalog_back(ortet: Ortet, proj: Path, commit: Commit) -> None:
    oid = commit("one", a="1")
    for path in ortet.store.glob("catalog.db*"):
        path.unlink()
    assert ortet.kind("log", cwd=proj, code=8) == "no_catalog"
    dry = ortet.json("repair", cwd=proj)
    assert (dry["applied"], dry["catalog"]) == (False, "missing")
    assert ortet.kind("log", cwd=proj, code=8) == "no_catalog"
    done = ortet.json("repair", "--apply", cwd=proj)
    assert oid in done["branches"].values()
    assert ortet.json("verify", cwd=proj)["ok"]


def test_verify_reads_a_sample_and_restores(ortet: Ortet, proj: Path, commit: Commit) -> None:
    commit("one", a="1")
    assert ortet.json("verify", "--sample", "5%", cwd=proj)["sample"] == 0.05
    assert ortet.json("verify", "--restore", cwd=proj)["restored"] == 1
    assert ortet.kind("verify", "--sample", "5", cwd=proj, code=2) == "bad_value"

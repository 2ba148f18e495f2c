"""Which CRIU is used, and why not."""

from __future__ import annotations

from pathlib import Path

import pytest

import ortet
from ortet.machines.live.criu import binary
from ortet.machines.live.criu.binary import criu_version, find_criu, probe_criu


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(binary, "_BUNDLED_CRIU", str(tmp_path / "ours"))


def program(path: Path, says: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


pytestmark = pytest.mark.criu


def test_a_missing_criu_is_reported_with_the_fix() -> None:
    assert find_criu() == ""
    (line,) = probe_criu("")
    assert not line.ok
    assert "not installed" in line.detail
    assert "scripts/criu" in line.fix


def test_an_old_criu_is_reported_with_its_version(tmp_path: Path) -> None:
    old = program(tmp_path / "bin" / "criu", "Version: 3.17.1")
    assert find_criu() == old
    (line,) = probe_criu(old)
    assert not line.ok
    assert "3.17.1" in line.detail


def test_a_supported_criu_is_preferred_to_an_old_one(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "criu", "Version: 3.17.1")
    ours = program(tmp_path / "ours", "Version: 4.2.1")
    assert find_criu() == ours
    assert criu_version(ours) == (4, 2, 1)
    assert all(line.ok for line in probe_criu(ours))


def test_the_configured_criu_program_is_the_only_one_used(tmp_path: Path) -> None:
    program(tmp_path / "ours", "Version: 4.2.1")
    given = program(tmp_path / "given", "Version: 4.3")
    assert find_criu(given) == given
    missing = str(tmp_path / "missing")
    assert find_criu(missing) == missing
    assert missing in probe_criu(missing)[0].detail
    assert find_criu("off") == ""


def test_a_criu_that_cannot_be_executed_is_reported_as_not_runnable(tmp_path: Path) -> None:
    broken = tmp_path / "ours"
    broken.write_text("")
    assert criu_version(str(broken)) == ()
    assert "not runnable" in probe_criu(str(broken))[0].detail


def test_a_criu_session_without_criu_is_refused_before_it_is_created(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with ortet.open(tmp_path / "store") as hub:
        with pytest.raises(ortet.Unsupported) as caught:
            hub.session("one", workspace=tmp_path / "work", engine="criu")
        assert caught.value.kind == "engine_unusable"
        assert hub.sessions() == []
        hub.session("one", workspace=tmp_path / "work", engine="overlay")

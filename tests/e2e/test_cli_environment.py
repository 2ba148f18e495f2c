"""environment and the handover files, through a real process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.fixtures.commands import Ortet

from ortet.config.environment import open_hub


@pytest.fixture
def work(ortet: Ortet, tmp_path: Path) -> Path:
    """The directory of a session `s`."""
    place = tmp_path / "proj"
    place.mkdir()
    with open_hub(ortet.store) as hub, hub.session("s", workspace=place, environment="asked") as s:
        s.plan(["a", "b"])
        s.advance()
        s.commit()
    return place


def install(work: Path, name: str) -> None:
    (work / f".venv/lib/python3.11/site-packages/{name}.dist-info").mkdir(parents=True)
    (work / ".venv/pyvenv.cfg").write_text("version = 3.11.2\n")


def test_environment_records_shows_and_compares_packages(ortet: Ortet, work: Path) -> None:
    assert ortet.json("environment", "s", cwd=work) is None
    assert "--record" in ortet("environment", "s", cwd=work).out
    install(work, "foo-1")
    found = ortet.json("environment", "s", "--record", cwd=work)
    assert found["python"] == {"version": "3.11.2", "packages": {"foo": "1"}}
    assert ortet.json("environment", "s", cwd=work) == found
    assert "  foo==1\n" in ortet("environment", "s", cwd=work).out
    with open_hub(ortet.store) as hub, hub.session("s") as s:
        s.commit()
    assert "nothing differs" in ortet("environment", "s", "--compare", cwd=work).out
    install(work, "bar-2")
    assert (
        "package bar: nothing then, 2 now" in ortet("environment", "s", "--compare", cwd=work).out
    )
    (one,) = ortet.json("environment", "s", "--to", "HEAD", cwd=work)
    assert one == {"part": "package", "name": "bar", "then": "", "now": "2"}


def test_invalid_environment_arguments_are_refused(ortet: Ortet, work: Path) -> None:
    assert ortet.kind("environment", "nobody", cwd=work, code=4) == "no_session"
    assert ortet.kind("environment", "s", "--to", "nowhere", cwd=work, code=4)
    assert ortet.kind("environment", "s", "--record", "--compare", cwd=work, code=2) == "bad_usage"


def test_brief_write_creates_the_handover_files_and_never_overwrites_others(
    ortet: Ortet, work: Path, tmp_path: Path
) -> None:
    out = ortet("brief", "s", "--write", "../out", cwd=work).out
    assert out.splitlines() == [
        "wrote BRIEFING.md",
        "wrote feature_list.json",
        "wrote progress.md",
    ]
    listed = json.loads((tmp_path / "out/feature_list.json").read_text())
    assert [one["passes"] for one in listed["features"]] == [True, False]
    made = ortet.json("brief", "s", "--write", "../out", cwd=work)
    assert made["written"] == [] and len(made["unchanged"]) == 3
    (tmp_path / "out/progress.md").write_text("mine")
    assert ortet.kind("brief", "s", "--write", "../out", cwd=work, code=5) == "not_ours"

"""bisect, through a real process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.commands import Ortet

from ortet.config.environment import open_hub


@pytest.fixture
def line(ortet: Ortet, proj: Path) -> list[str]:
    """Ten commits; from the seventh on, the file says broken."""
    oids = []
    with open_hub(ortet.store) as hub, hub.workspace(proj) as workspace:
        for number in range(10):
            word = "broken" if number >= 6 else "works"
            (proj / "state").write_text(f"{word} {number}\n")
            oids.append(workspace.commit(f"step {number}").oid)
    return oids


def test_run_finds_the_first_bad_commit(ortet: Ortet, proj: Path, line: list[str]) -> None:
    (proj / "state").write_text("my unsaved work\n")
    found = ortet.json(
        "bisect", "run", "--good", line[0], "--", "grep", "-q", "works", "state", cwd=proj
    )
    assert found["first_bad"] == line[6]
    assert 2 <= len(found["steps"]) <= 4
    assert {step["verdict"] for step in found["steps"]} == {"good", "bad"}
    assert (proj / "state").read_text() == "my unsaved work\n"
    assert [head["name"] for head in ortet.json("branch", cwd=proj)] == ["proj"]
    assert ortet.json("log", cwd=proj)[0]["oid"] == line[-1]


def test_bisect_run_prints_the_first_bad_commit(ortet: Ortet, proj: Path, line: list[str]) -> None:
    done = ortet("bisect", "run", "--good", line[0], "grep -q works state", cwd=proj)
    assert done.out == f"the first bad commit is\n  {line[6][:12]} step 6\n"
    assert "good" in done.err and "bad" in done.err


def test_commits_that_cannot_be_tested_are_skipped(
    ortet: Ortet, proj: Path, line: list[str]
) -> None:
    command = "grep -q 5 state && exit 125; grep -q works state"
    found = ortet.json("bisect", "run", "--good", line[0], command, cwd=proj)
    assert found["first_bad"] is None
    assert set(found["suspects"]) == {line[5], line[6]}


def test_a_command_that_cannot_run_stops_the_search(
    ortet: Ortet, proj: Path, line: list[str]
) -> None:
    done = ortet(
        "bisect", "run", "--json", "--good", line[0], "--", "no-such-program", "x", cwd=proj, code=2
    )
    assert done.error["kind"] == "bad_command"
    assert [head["name"] for head in ortet.json("branch", cwd=proj)] == ["proj"]


def test_bisect_good_and_bad_find_the_first_bad_commit(
    ortet: Ortet, proj: Path, line: list[str]
) -> None:
    found = ortet.json("bisect", "start", "--good", line[0], "--bad", "HEAD", cwd=proj)
    while found["running"]:
        copy = found["workspace"]
        text = ortet("run", "-w", copy, "cat state", cwd=proj).out
        found = ortet.json("bisect", "good" if "works" in text else "bad", cwd=proj)
    assert found["first_bad"] == line[6]
    assert [head["name"] for head in ortet.json("branch", cwd=proj)] == ["proj"]
    assert ortet.kind("bisect", "good", cwd=proj, code=4) == "no_bisect"


def test_bisect_run_continues_a_search_started_by_hand(
    ortet: Ortet, proj: Path, line: list[str]
) -> None:
    done = ortet("bisect", "start", "--good", line[2], cwd=proj)
    assert "ortet run -w proj/1 -- COMMAND" in done.out
    found = ortet.json("bisect", "run", "grep -q works state", cwd=proj)
    assert found["first_bad"] == line[6]
    assert [head["name"] for head in ortet.json("branch", cwd=proj)] == ["proj"]


def test_bisect_reset_removes_the_search_and_its_workspace(
    ortet: Ortet, proj: Path, line: list[str]
) -> None:
    ortet("bisect", "start", "--good", line[0], cwd=proj)
    again = ortet("bisect", "start", "--good", line[0], "--json", cwd=proj, code=5)
    assert again.error["kind"] == "bisect_running"
    ortet("bisect", "skip", cwd=proj)
    ortet("bisect", "reset", cwd=proj)
    ortet("bisect", "reset", cwd=proj)
    assert [head["name"] for head in ortet.json("branch", cwd=proj)] == ["proj"]


def test_bisect_with_invalid_or_missing_ends_is_refused(
    ortet: Ortet, proj: Path, line: list[str]
) -> None:
    turned = ("bisect", "start", "--good", "HEAD", "--bad", line[0], "--json")
    assert ortet(*turned, cwd=proj, code=2).error["error"] == "invalid"
    assert ortet.kind("bisect", "start", cwd=proj, code=2) == "no_good"
    assert ortet.kind("bisect", "run", "true", cwd=proj, code=4) == "no_bisect"

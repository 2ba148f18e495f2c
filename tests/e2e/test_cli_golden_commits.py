"""Commits with running programs as golden images: tagged, forked, and used by swarms."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.commands import Ortet
from tests.fixtures.waiting import eventually

from ortet.cli.commands.attach import safe_members

pytestmark = [pytest.mark.criu, pytest.mark.files({"page": "first\n"})]

_ECHO = "while read line; do echo $line; done < /tmp/in"


@pytest.fixture
def golden(ortet: Ortet, work: Path) -> Iterator[Ortet]:
    """A directory whose machine has a program that holds a word, committed and tagged."""
    ortet.env["ORTET_AGENT"] = "on"
    if "ORTET_CRIU" in os.environ:
        ortet.env["ORTET_CRIU"] = os.environ["ORTET_CRIU"]
    ortet("init", cwd=work)
    ortet("commit", "-m", "first", cwd=work)
    ortet("start", cwd=work)
    ortet("run", "-w", "proj-live", "mkfifo /tmp/in", cwd=work)
    ortet("spawn", "echo", "--", "sh", "-c", "exec 9<>/tmp/in; word=kept; " + _ECHO, cwd=work)
    said = ortet("commit", "-w", "proj-live", "-m", "warm", cwd=work).out
    assert "running: echo" in said
    ortet("tag", "golden", "-w", "proj-live", cwd=work)
    yield ortet
    ortet("agent", "stop", "--force", cwd=work)


def jobs(ortet: Ortet, work: Path) -> dict[str, Any]:
    return {one["name"]: [j["name"] for j in one["jobs"]] for one in ortet.json("ps", cwd=work)}


@pytest.mark.slow
def test_forks_of_a_golden_commit_live_on(golden: Ortet, work: Path) -> None:
    assert golden.json("show", "golden", cwd=work)["running"] == ["echo"]
    made = golden.json("fork", "golden", "-n", "2", cwd=work)
    assert [(one["name"], one["engine"]) for one in made] == [
        ("proj/1", "criu"),
        ("proj/2", "criu"),
    ]
    assert jobs(golden, work) == {name: ["echo"] for name in ("proj-live", "proj/1", "proj/2")}
    golden("run", "-w", "proj/1", "echo one > /tmp/in", cwd=work)
    eventually(lambda: golden("logs", "echo", "-w", "proj/1", cwd=work).out == "one\n")
    golden("logs", "echo", "-w", "proj/2", cwd=work)
    golden("stop", "proj/1", cwd=work)
    golden("kill", "proj/2", cwd=work)
    begun = golden.json("start", "proj/1", "proj/2", cwd=work)
    assert [one["name"] for one in begun] == ["proj/1", "proj/2"]
    assert golden("logs", "echo", "-w", "proj/1", "-n", "1", cwd=work).out == "one\n"
    assert golden("logs", "echo", "-w", "proj/2", cwd=work).out == ""


def test_without_an_agent_forks_start_only_on_request(golden: Ortet, work: Path) -> None:
    golden("fork", "golden", cwd=work, env={"ORTET_AGENT": "off"})
    assert "proj/1" not in jobs(golden, work)
    golden("start", "proj/1", cwd=work)
    assert jobs(golden, work)["proj/1"] == ["echo"]


def test_fork_without_criu_names_the_processes_that_are_lost(golden: Ortet, work: Path) -> None:
    weaker = {"ORTET_CRIU": "off", "ORTET_AGENT": "off"}
    done = golden("fork", "golden", cwd=work, env=weaker)
    assert "overlay" in done.out
    assert "not in the copies: echo (`ortet start proj/1` starts it there)" in done.err
    told = golden("doctor", cwd=work, env=weaker).out
    assert "ORTET_CRIU=off" in told and "keeps files and environment" in told


def test_swarm_attempts_start_with_the_running_processes_of_the_tag(
    golden: Ortet, work: Path
) -> None:
    task = "pgrep -f 'word=kep[t]' > found"
    words = ["--from", "golden", "-n", "2", "--score", "wc -l < found", "--", task]
    golden("swarm", "run", *words, cwd=work)
    shown = golden.json("swarm", "show", cwd=work)
    assert [one["score"] for one in shown["attempts"]] == [1.0, 1.0]


def test_a_restart_that_is_not_possible_is_refused_and_changes_nothing(
    golden: Ortet, work: Path
) -> None:
    before = golden.json("log", cwd=work)
    assert golden.kind("restore", "golden", "--restart", cwd=work, code=9) == "no_restart"
    assert golden.json("log", cwd=work) == before
    to = ("restore", "golden", "--restart", "--to", "../other")
    assert golden.kind(*to, cwd=work, code=2) == "bad_usage"
    done = golden("restore", "golden", "--to", "../other", cwd=work)
    assert "echo" in done.err and "--restart" not in done.err


def _ended_at_once(golden: Ortet, work: Path) -> str:
    """What is told of a program that fails; on a slow host it runs for a moment first."""
    program = ("--", "sh", "-c", "echo no such thing; exit 3")
    numbers = count()

    def said() -> str | None:
        name = f"bad{next(numbers)}"
        told = golden("spawn", name, *program, cwd=work).out
        if told.startswith(start := f"{name} ended at once in proj-live "):
            return told.removeprefix(start)
        assert told.startswith(f"{name} runs in proj-live as "), told
        return None

    return eventually(said)


def test_machine_commands_report_names_ports_and_exit_codes(golden: Ortet, work: Path) -> None:
    assert "proj-live lives: `-w proj-live`" in golden("status", cwd=work).out
    assert _ended_at_once(golden, work) == "with 3: no such thing\n"
    taken = golden("expose", "3000", "--at", "0", cwd=work).out.split()[0].rpartition(":")[2]
    done = golden("expose", "3001", "--at", taken, cwd=work, code=5)
    assert done.err.startswith("error: port")  # JSON only where it is asked for
    assert "(it is" in golden("tag", "golden", cwd=work, code=5).err
    assert golden.kind("cp", "proj-live:page", "-", cwd=work, code=2) == "bad_usage"


def test_a_new_machine_of_a_directory_gets_a_free_numbered_name(golden: Ortet, work: Path) -> None:
    golden("rm", "proj-live", cwd=work)  # whose branch stays
    assert golden.json("start", cwd=work)["name"] == "proj-live-2"


def test_a_dropped_machine_is_not_reported_as_dead(golden: Ortet, work: Path) -> None:
    golden("fork", "golden", cwd=work)
    golden("agent", "stop", "--force", cwd=work)
    assert golden.json("doctor", cwd=work)["dead"] == ["proj-live", "proj/1"]
    golden("drop", "proj/1", cwd=work)
    assert list(jobs(golden, work)) == ["proj-live"]


def member(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode, found.uid = kind, to, 0o6777, 12345
    return found


def test_extracted_archive_members_cannot_leave_their_directory() -> None:
    """As older Pythons need it, which have no filters for archives."""
    good = [member("d", tarfile.DIRTYPE), member("d/f"), member("d/l", tarfile.SYMTYPE, "../d/f")]
    taken = safe_members(good)
    assert [one.mode for one in taken] == [0o755, 0o755, 0o755]
    assert {one.uid for one in taken} == {os.getuid()}
    for bad in (
        [member("/etc/f")],
        [member("d/../../f")],
        [member("l", tarfile.SYMTYPE, "/etc")],
        [member("d/l", tarfile.SYMTYPE, "../../x")],
        [member("l", tarfile.SYMTYPE, "d"), member("l/f")],
        [member("l", tarfile.SYMTYPE, "d"), member("l")],
        [member("h", tarfile.LNKTYPE, "../x")],
        [member("b", tarfile.BLKTYPE)],
    ):
        with pytest.raises(tarfile.TarError):
            safe_members(bad)

"""swarm, through a real process."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures import forked
from tests.fixtures.commands import Ortet


@pytest.fixture
def golden(ortet: Ortet, proj: Path) -> Path:
    (proj / "try.sh").write_text("echo $ORTET_ATTEMPT > out; echo $ORTET_SESSION >> who\n")
    ortet("commit", "-m", "prepared", cwd=proj)
    ortet("tag", "golden", cwd=proj)
    (proj / "later").write_text("later\n")
    return proj


def test_swarm_keeps_the_best_of_n_attempts_from_a_tag(ortet: Ortet, golden: Path) -> None:
    words = (
        "swarm",
        "run",
        "--from",
        "golden",
        "-n",
        "3",
        "--score",
        "cat out",
        "--",
        "sh",
        "try.sh",
    )
    done = ortet(*words, cwd=golden)
    assert done.out.splitlines()[-1] == "swarm swarm-1: 3 done; kept 2, best score 2"
    assert (golden / "out").read_text() == "2\n"
    assert (golden / "who").read_text() == "proj/swarm-1-2\n"
    assert not (golden / "later").exists()  # it was committed before, and is in the reflog
    assert [row["name"] for row in ortet.json("branch", cwd=golden)] == ["proj"]
    (listed,) = ortet.json("swarm", "ls", cwd=golden)
    shown = ortet.json("swarm", "show", "swarm-1", cwd=golden)
    assert (listed, shown["kept"], shown["state"]) == (shown, [2], "finished")
    lines = ortet("swarm", "show", "swarm-1", cwd=golden).out.splitlines()
    assert [line.startswith("*") for line in lines] == [False, False, True]


def test_swarm_run_json_prints_one_line_per_attempt(ortet: Ortet, golden: Path) -> None:
    done = ortet("--json", "swarm", "run", "-n", "2", "--keep", "2", "--", "sh try.sh", cwd=golden)
    *attempts, whole = map(json.loads, done.out.splitlines())
    assert sorted(one["i"] for one in attempts) == [0, 1]
    assert whole["kept"] == [0, 1]
    assert {one["name"] for one in ortet.json("branch", cwd=golden)} == {
        "proj",
        "proj/swarm-1-0",
        "proj/swarm-1-1",
    }


def test_swarm_run_without_a_scored_attempt_is_reported(ortet: Ortet, golden: Path) -> None:
    done = ortet("swarm", "run", "-n", "2", "--", "echo no >&2; exit 3", cwd=golden, code=5)
    assert "error: exit code 3: no" in done.out
    assert "no attempt has a score" in done.err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), 2),
        (("-n", "0", "--", "true"), 2),
        (("--keep", "some", "--", "true"), 2),
        (("--budget", "usd", "--", "true"), 2),
        (("--from", "nowhere", "--", "true"), 4),
        (("--name", "unknown"), 4),
        (("-s", "nobody", "--", "true"), 4),
    ],
)
def test_invalid_swarm_arguments_are_refused(
    ortet: Ortet, golden: Path, words: tuple[str, ...], code: int
) -> None:
    ortet("swarm", "run", *words, cwd=golden, code=code)
    assert (golden / "later").exists()


def test_a_swarm_continues_after_its_driver_was_killed(
    ortet: Ortet, golden: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    task = f"test $ORTET_ATTEMPT = 0 || test -e {gate} || sleep 1000; echo $ORTET_ATTEMPT"
    words = ["--json", "swarm", "run", "-n", "3", "--name", "long", "--", task]
    process = forked.Popen(
        [sys.executable, "-m", "ortet", *words],
        cwd=golden,
        env=ortet.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["i"] == 0
    process.send_signal(signal.SIGKILL)
    process.communicate()
    gate.touch()
    done = ortet("swarm", "run", "--name", "long", cwd=golden)
    assert done.out.splitlines()[-1] == "swarm long: 3 done; kept 2, best score 2"
    shown = ortet.json("swarm", "show", "long", cwd=golden)
    assert (shown["attempts"][0]["tries"], shown["attempts"][1]["tries"]) == (1, 2)


def test_swarm_run_shows_progress_at_a_terminal(ortet: Ortet, golden: Path) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "ortet", "swarm", "run", "-n", "2", "--", "sh try.sh"]
    process = forked.Popen(
        words, cwd=golden, env=ortet.env, stdout=subprocess.PIPE, stderr=theirs, text=True
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data
    out, _ = process.communicate()
    os.close(ours)
    assert process.returncode == 0
    assert b"swarm swarm-1 [" in seen
    assert b"2/2" in seen
    assert out.splitlines()[-1] == "swarm swarm-1: 2 done; kept 0, best score 0"

"""The benchmark itself: session and live parts run, small, and keep what they did not measure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ortet.machine.mounts import privileged

BENCH = Path(__file__).resolve().parent.parent / "bench" / "run.py"
ROWS = BENCH.with_name("live_rows.py")
OTHER = "<!-- part: files -->\n\n## Files and machines\n\nas it was\n"


def run(tmp_path: Path, *words: str, peers: bool = False) -> subprocess.CompletedProcess[str]:
    words = words if peers else ("--no-peers", *words)
    return subprocess.run(
        [sys.executable, str(BENCH), "--quick", *words],
        env={**os.environ, "ORTET_BENCH_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_session_part_runs_without_peers(tmp_path: Path) -> None:
    output = tmp_path / "RESULTS.md"
    output.write_text(f"# Results\n\n{OTHER}")
    done = run(tmp_path, "--part", "session", "--output", str(output))
    assert done.returncode == 0, done.stderr
    text = output.read_text()
    assert OTHER in text
    assert text.count("<!-- part: session -->") == 1
    for row in ("durable append", "group commit", "after a trim", "fork(1000)", "recorded step"):
        assert row in text
    assert list((tmp_path / "cache").iterdir()) == []


def test_one_row_alone(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "group")
    assert done.returncode == 0, done.stderr
    assert "group commit" in done.stdout
    assert "recorded step" not in done.stdout
    assert "part: files" not in done.stdout


@pytest.mark.skipif(not privileged(), reason="live machines need root")
def test_the_live_part_runs_beside_raw_criu(tmp_path: Path) -> None:
    done = run(tmp_path, "--part", "live", peers=True)
    assert done.returncode == 0, done.stderr
    for row in live_titles():
        assert row in done.stdout
    assert done.stdout.count("| raw CRIU |") == 6
    assert list((tmp_path / "cache").iterdir()) == []


def live_titles() -> list[str]:
    return re.findall(r'^ +Row\(\s*"live-[^"]+",\s*"([^"]+)"', ROWS.read_text(), re.MULTILINE)

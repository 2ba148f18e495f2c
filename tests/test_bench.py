"""The benchmark itself: its session part runs, small, and keeps what it did not measure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent / "bench" / "run.py"
OTHER = "<!-- part: files -->\n\n## Files and machines\n\nas it was\n"


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCH), "--quick", "--no-peers", *words],
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

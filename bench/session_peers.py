"""The peers of the session rows: their environment, and a hand on each while it runs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import measure

PINS = Path(__file__).resolve().parent.parent / "requirements" / "bench-peers.txt"
CHILD = Path(__file__).with_name("session_peer.py")
PACKAGES = ("langgraph", "langgraph-checkpoint-sqlite", "openai-agents", "dbos")

TURNS = {
    "LangGraph SqliteSaver": "sqlite-saver",
    "LangGraph SqliteSaver, durability=exit": "sqlite-saver-exit",
    "LangGraph delta channel": "delta",
    "LangGraph delta channel, durability=exit": "delta-exit",
    "OpenAI Agents SQLiteSession": "openai-agents",
}
"""By the name in the report, what the child is told to be."""
STEPS = {"DBOS": "dbos"}


def environment(cache: Path, pins: Path = PINS) -> Path:
    """The Python of a virtual environment with the pinned peers, made when there is none."""
    mark = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:12]
    root = cache / f"peers-{mark}"
    python, done = root / "bin" / "python", root / "done"
    if not done.exists():
        print(f"installing {pins.name}", file=sys.stderr)
        shutil.rmtree(root, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(root)], check=True)
        # the pins are complete: nothing is looked up, so no newer release can be in their way
        words = ["-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-qq"]
        subprocess.run(
            [str(python), *words, "--no-deps", "--require-hashes", "-r", str(pins)], check=True
        )
        done.touch()
    return python


def versions(python: Path) -> str:
    words = [str(python), str(CHILD), "versions", ".", *PACKAGES]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return "; ".join(f"{name} {text}" for name, text in json.loads(done.stdout).items())


class Peer:
    """A running child; `place` holds all that it writes."""

    def __init__(self, name: str, process: subprocess.Popen[str], place: Path) -> None:
        self.name = name
        self.place = place
        self.note = ""
        self._process = process

    def ask(self, do: str, **values: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **values}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended: see what it printed above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def rest(self) -> int:
        """Bytes on the disk, its log moved into its database."""
        self.note = self.ask("rest")["pragmas"]
        return measure.disk_bytes(self.place)


@contextmanager
def running(
    python: Path,
    kinds: dict[str, str],
    place: Path,
    *,
    child: Path = CHILD,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Sequence[Peer]]:
    """All of them at once, so that they can take turns; none outlives the block."""
    started: list[Peer] = []
    processes: list[subprocess.Popen[str]] = []
    try:
        for name, kind in kinds.items():
            home = place / kind
            home.mkdir(parents=True)
            process = subprocess.Popen(
                [str(python), str(child), kind, str(home)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONWARNINGS": "ignore", **(environ or {})},
            )
            processes.append(process)
            started.append(Peer(name, process, home))
        yield started
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

"""A zygote: other processes in milliseconds, which may be killed anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


class Ended:
    """What became of a process: its exit code, and the lines it could still say."""

    def __init__(self, code: int, said: list[str]) -> None:
        self.code = code
        self.said: list[list[Any]] = [json.loads(line) for line in said]

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    def of(self, word: str) -> list[list[Any]]:
        return [line[1:] for line in self.said if line[0] == word]


class Zygote:
    """Runs one job at a time; `after` kills it behind that many lines, `delay` seconds later."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        with errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.zygote"],
                cwd=ROOT,
                env={k: v for k, v in os.environ.items() if k != "ORTET_FAULT"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def start(
        self,
        verb: str,
        base: Path,
        *,
        fault: str = "",
        points: bool = False,
        after: int | None = None,
        delay: float = 0.0,
        **args: Any,
    ) -> None:
        job = {
            "verb": verb,
            "base": str(base),
            "fault": fault,
            "points": points,
            "after": after,
            "delay": delay,
            "args": args,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def end(self) -> Ended:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._errors.read_text()
        ended = Ended(**json.loads(line))
        assert ended.code in (0, -signal.SIGKILL), self._errors.read_text()[-6000:]
        return ended

    def run(self, verb: str, base: Path, **options: Any) -> Ended:
        self.start(verb, base, **options)
        return self.end()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def zygotes(tmp_path: Path) -> Iterator[list[Zygote]]:
    """Two of them, for two processes at once."""
    made = [Zygote(tmp_path / f"errors-{number}") for number in range(2)]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[Zygote]:
    made = Zygote(tmp_path / "errors")
    yield made
    made.close()

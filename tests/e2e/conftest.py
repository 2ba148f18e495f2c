"""The command line as its users have it: a process of its own, a home of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked


class Done:
    """How one call ended."""

    def __init__(self, process: subprocess.CompletedProcess[bytes]) -> None:
        self.code = process.returncode
        self.out = process.stdout.decode("utf-8", "surrogateescape")
        self.err = process.stderr.decode("utf-8", "surrogateescape")

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err)


class Ortet:
    """`ortet ...` in a directory; the exit code must be the one expected."""

    def __init__(self, home: Path) -> None:
        self.home = home
        kept = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "COVERAGE_PROCESS_START")
        self.env = {name: os.environ[name] for name in kept if name in os.environ}
        self.env |= {"HOME": str(home), "LC_ALL": "C.UTF-8", "ORTET_AUTHOR": "tester"}
        self.env["ORTET_AGENT"] = "off"  # but where it is what is tested

    def argv(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "ortet", *args]

    def __call__(
        self,
        *args: str,
        cwd: Path,
        code: int | None = 0,
        stdin: bytes = b"",
        env: dict[str, str] | None = None,
    ) -> Done:
        done = Done(
            forked.run(
                self.argv(*args),
                cwd=cwd,
                env=self.env | (env or {}),
                input=stdin,
                capture_output=True,
                check=False,
            )
        )
        assert code in (None, done.code), f"{args} ended with {done.code}:\n{done.out}\n{done.err}"
        return done

    def json(self, *args: str, cwd: Path) -> Any:
        return self("--json", *args, cwd=cwd).data

    def kind(self, *args: str, cwd: Path, code: int) -> str:
        """The kind of the error it must end with."""
        kind: str = self("--json", *args, cwd=cwd, code=code).error["kind"]
        return kind

    @property
    def store(self) -> Path:
        return self.home / ".local" / "share" / "ortet"


@pytest.fixture
def ortet(tmp_path: Path) -> Ortet:
    home = tmp_path / "home"
    home.mkdir()
    return Ortet(home)


@pytest.fixture
def proj(tmp_path: Path, ortet: Ortet) -> Path:
    """A workspace with two files and no commit."""
    place = tmp_path / "proj"
    place.mkdir()
    (place / "a.txt").write_text("one\n")
    (place / "src").mkdir()
    (place / "src" / "main.py").write_text("print('hi')\n")
    ortet("init", cwd=place)
    return place


Commit = Callable[..., str]


@pytest.fixture
def commit(ortet: Ortet, proj: Path) -> Commit:
    """Write files, commit, return the id."""

    def make(message: str, **files: str) -> str:
        for name, text in files.items():
            (proj / name).write_text(text)
        oid: str = ortet.json("commit", "-m", message, cwd=proj)["oid"]
        return oid

    return make

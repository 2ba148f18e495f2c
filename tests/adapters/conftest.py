"""A store for each test of an adapter, and processes that use it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fixtures import forked

import ortet
from ortet.session.hub import Hub

ROOT = Path(__file__).resolve().parents[2]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def hub(store: Path) -> Iterator[Hub]:
    with ortet.open(store) as opened:
        yield opened


@pytest.fixture
def start(store: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """The worker.py beside a test, with these words; ended with the test."""
    worker = request.path.with_name("worker.py")
    begun: list[subprocess.Popen[str]] = []

    def run(*words: str) -> subprocess.Popen[str]:
        process = forked.Popen(
            [sys.executable, str(worker), str(store), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        begun.append(process)
        return process

    yield run
    for process in begun:
        process.kill()
        process.communicate()

"""Processes that use the store of a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures import forked
from tests.fixtures.workers import StartScript

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def start(store: Path, request: pytest.FixtureRequest) -> Iterator[StartScript]:
    """Start the worker.py beside a test with these words; it ends with the test."""
    worker = request.path.with_name("worker.py")
    begun: list[subprocess.Popen[str]] = []

    def run(*words: str) -> subprocess.Popen[str]:
        process = forked.Popen(
            [sys.executable, str(worker), str(store), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )
        begun.append(process)
        return process

    yield run
    for process in begun:
        process.kill()
        process.communicate()

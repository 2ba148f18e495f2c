"""Other processes that work on the same store at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.fixtures.workers import Start, Worker


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a worker; it waits behind `ready` until told to go."""
    workers: list[Worker] = []

    def begin(verb: str, *args: object, env: dict[str, str] | None = None) -> Worker:
        workers.append(Worker(verb, *args, env=env))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.process.kill()
        worker.process.communicate()


@pytest.fixture
def together(start: Start) -> Callable[..., list[Any]]:
    """Run workers that begin at the same moment; returns what each found."""

    def run(*jobs: tuple[object, ...]) -> list[Any]:
        workers = [start(str(verb), *args) for verb, *args in jobs]
        for worker in workers:
            worker.wait_for("ready")
        for worker in workers:
            worker.go()
        return [worker.done for worker in workers]

    return run

"""Other processes that work on the same store at the same time, and what few files share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.workers import Start, Worker

from ortet.session.hub import Hub
from ortet.session.session import Session
from ortet.store import remotesweep


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


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of a user of the test's own, whose home directory is made when needed."""
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture
def live(with_criu: None, hub: Hub, work: Path) -> Session:
    """A session in a machine of the process engine."""
    return hub.session("live", workspace=work, engine="criu")


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a garbage collection remove packs at once."""
    monkeypatch.setattr(remotesweep, "GRACE", -60.0)

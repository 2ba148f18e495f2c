"""Real stores and directories, and other processes that work on them at the same time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked
from tests.fixtures.postgres import shared

from ortet.config import open_hub
from ortet.session.hub import Hub
from ortet.session.workspace import Workspace

WORKER = Path(__file__).with_name("worker.py")


class Worker:
    """Another process with a hub of its own; `ready` when it may go, `done` is what it found."""

    def __init__(self, verb: str, *args: object, env: dict[str, str] | None = None) -> None:
        self.process: subprocess.Popen[str] = forked.Popen(
            [sys.executable, str(WORKER), verb, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    @property
    def done(self) -> Any:
        out, _ = self.process.communicate()
        assert self.process.returncode == 0
        return json.loads(out.splitlines()[-1])


Start = Callable[..., Worker]
Open = Callable[..., Hub]
Read = Callable[[Path], dict[str, str]]


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
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def opened(store: Path, tmp_path: Path) -> Iterator[Open]:
    """Open hubs on the store, or on another; all are closed at the end."""
    environ = {"HOME": str(tmp_path / "nobody")}  # not there, unless a test keeps keys
    hubs: list[Hub] = []

    def open_(url: Path = store, **options: Any) -> Hub:
        hubs.append(open_hub(url, environ=dict(environ), **options))
        return hubs[-1]

    yield open_
    for hub in hubs:
        hub.close()


@pytest.fixture
def hub(opened: Open) -> Hub:
    return opened()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A directory with two files."""
    place = tmp_path / "proj"
    (place / "src").mkdir(parents=True)
    (place / "a.txt").write_text("one\ntwo\nthree\n")
    (place / "src/main.py").write_text("print('hi')\n")
    return place


@pytest.fixture
def ws(hub: Hub, work: Path) -> Workspace:
    return hub.workspace(work, engine="folder")


@pytest.fixture
def read() -> Read:
    """The files below a directory, read without any of our code."""

    def files(root: Path) -> dict[str, str]:
        found = sorted(path for path in root.rglob("*") if path.is_file())
        return {str(path.relative_to(root)): path.read_text() for path in found}

    return files


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


Host = Callable[[str], Hub]


@pytest.fixture
def url(tmp_path: Path, schema: str) -> str:
    return f"{shared().url()}&bucket=file://{tmp_path}/bucket&schema={schema}"


@pytest.fixture
def host(tmp_path: Path, url: str) -> Iterator[Host]:
    """A hub on it as a host of this name opens it: its cache is its own."""
    hubs: list[Hub] = []

    def opened(name: str) -> Hub:
        hubs.append(open_hub(url, environ=environ(tmp_path, name)))
        return hubs[-1]

    yield opened
    for hub in hubs:
        hub.close()


def environ(tmp_path: Path, name: str) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path / name)}

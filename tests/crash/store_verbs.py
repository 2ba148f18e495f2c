"""What a program does to a workspace, one verb each, to be killed at every fault point on the way.

("commit", oid) tells that a commit is acknowledged.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.saying import Tell

import ortet


def prepare(base: Path, engine: str) -> None:
    """Build a workspace with two commits and an uncommitted file."""
    work = base / "work"
    (work / "dir").mkdir(parents=True)
    (work / "a").write_bytes(b"a" * 200_000)
    (work / "dir/b").write_text("b")
    (work / "gone").write_text("only in the first commit")
    with ortet.open(base / "store") as hub, hub.workspace(work, engine=engine) as ws:
        ws.commit("first")
        (ws.path / "gone").unlink()
        (ws.path / "dir/b").write_text("second")
        os.link(ws.path / "a", ws.path / "a2")
        ws.commit("second")
        (ws.path / "dir/c").write_text("not committed")


def commit(hub: Any, base: Path, engine: str, say: Tell) -> None:
    with hub.workspace(base / "work", engine=engine) as ws:
        (ws.path / "new").write_text("from the scenario")
        (ws.path / "deep/er").mkdir(parents=True)
        (ws.path / "deep/er/file").write_bytes(b"y" * 300_000)
        say("commit", ws.commit("scenario").oid)


def fork(hub: Any, base: Path, engine: str, say: Tell) -> None:
    with hub.workspace(base / "work", engine=engine) as ws:
        (ws.path / "new").write_text("before the fork")
        for child in ws.fork(2):
            (child.path / "mine").write_text(child.name)
            say("commit", child.commit("child").oid)


def restore(hub: Any, base: Path, engine: str, say: Tell) -> None:
    with hub.workspace(base / "work", engine=engine) as ws:
        first = hub.log(ws.name)[-1].oid
        (ws.path / "uncommitted").write_text("must survive")
        ws.restore(first)
        say("restored", first)


def elsewhere(hub: Any, base: Path, engine: str, say: Tell) -> None:
    with hub.workspace(base / "work", engine=engine) as ws:
        hub.restore(hub.log(ws.name)[-1].oid, to=base / "elsewhere")
        say("restored")


def sweep(hub: Any, base: Path, engine: str, say: Tell) -> None:
    with hub.workspace(base / "work", engine=engine) as ws:
        (ws.path / "a").write_bytes(random.randbytes(500_000))
        say("commit", ws.commit("garbage to be").oid)
    hub.sweep(min_garbage=0.0)
    say("swept")


def grow(hub: Any, base: Path, engine: str, say: Tell) -> None:
    """Commit enough for tails to be sealed, over and over, until killed."""
    with hub.workspace(base / "work", engine=engine) as ws:
        for turn in range(100_000):
            (ws.path / f"f{turn % 7}").write_bytes(random.randbytes(20_000))
            say("commit", ws.commit(f"turn {turn}").oid)
            if turn % 5 == 4:
                ws.rewind(2)
                say("rewound")
            if turn % 23 == 22:
                hub.sweep()
                say("swept")


SCENARIOS = {
    "commit": commit,
    "fork": fork,
    "restore": restore,
    "elsewhere": elsewhere,
    "sweep": sweep,
    "grow": grow,
}


def _verb(name: str) -> Callable[..., None]:
    def job(base: Path, tell: Tell, *, engine: str) -> None:
        with ortet.open(base / "store") as hub:
            tell("ready")
            SCENARIOS[name](hub, base, engine, tell)

    return job


VERBS: dict[str, Callable[..., None]] = {f"store.{name}": _verb(name) for name in SCENARIOS}

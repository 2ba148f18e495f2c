"""A process to be killed: does one scenario on a store, and says on stdout what is acknowledged."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

from ortet.store import faults

if "ORTET_TELL_POINTS" in os.environ:  # before any other module takes `reach` by name
    faults.reach = lambda name: print("point", name, flush=True)  # noqa: T201

import ortet


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def commit(hub: Any, base: Path, engine: str) -> None:
    with hub.workspace(base / "work", engine=engine) as ws:
        (ws.path / "new").write_text("from the scenario")
        (ws.path / "deep/er").mkdir(parents=True)
        (ws.path / "deep/er/file").write_bytes(b"y" * 300_000)
        say("commit", ws.commit("scenario").oid)


def fork(hub: Any, base: Path, engine: str) -> None:
    with hub.workspace(base / "work", engine=engine) as ws:
        (ws.path / "new").write_text("before the fork")
        for child in ws.fork(2):
            (child.path / "mine").write_text(child.name)
            say("commit", child.commit("child").oid)


def restore(hub: Any, base: Path, engine: str) -> None:
    with hub.workspace(base / "work", engine=engine) as ws:
        first = hub.log(ws.name)[-1].oid
        (ws.path / "uncommitted").write_text("must survive")
        ws.restore(first)
        say("restored", first)


def elsewhere(hub: Any, base: Path, engine: str) -> None:
    with hub.workspace(base / "work", engine=engine) as ws:
        hub.restore(hub.log(ws.name)[-1].oid, to=base / "elsewhere")
        say("restored")


def sweep(hub: Any, base: Path, engine: str) -> None:
    with hub.workspace(base / "work", engine=engine) as ws:
        (ws.path / "a").write_bytes(random.randbytes(500_000))
        say("commit", ws.commit("garbage to be").oid)
    report = hub.sweep(min_garbage=0.0)
    say("swept", report)


def grow(hub: Any, base: Path, engine: str) -> None:
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


def main() -> None:
    name, base, engine = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    with ortet.open(base / "store") as hub:
        say("ready")
        SCENARIOS[name](hub, base, engine)
    say("done")


if __name__ == "__main__":
    main()

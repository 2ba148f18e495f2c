"""Another process for tests: opens a hub, says `ready`, waits for a line, works, tells in JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import ortet


def say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def wait() -> None:
    say("ready")
    sys.stdin.readline()


def create(store: str) -> Any:
    """Open a store that is not there yet."""
    wait()
    with ortet.open(store) as hub:
        return (hub.root / "FORMAT").read_text()


def enter(store: str, directory: str) -> Any:
    """Open a directory as a workspace and commit."""
    with ortet.open(store) as hub:
        wait()
        with hub.workspace(directory, engine="folder") as ws:
            began = time.monotonic_ns()
            return {"name": ws.name, "oid": commit_once(ws), "opened": began, "path": str(ws.path)}


def commit_once(ws: ortet.Workspace) -> str:
    while True:
        try:
            return ws.commit("worker").oid
        except ortet.Conflict as error:
            if error.kind != "head_moved":
                raise


def commit(store: str, directory: str, name: str, count: str) -> Any:
    """Write and commit again and again; a lost race is repeated."""
    with ortet.open(store) as hub, hub.workspace(directory, engine="folder") as ws:
        wait()
        oids = []
        for turn in range(int(count)):
            Path(directory, name).write_text(f"{name} {turn}\n")
            oids.append(commit_once(ws))
        return oids


def fork(store: str, directory: str, count: str) -> Any:
    with ortet.open(store) as hub, hub.workspace(directory, engine="folder") as ws:
        wait()
        names = []
        for child in ws.fork(int(count)):
            (child.path / "mine").write_text(child.name)
            child.commit("mine")
            names.append(child.name)
        return names


def sweep(store: str, count: str) -> Any:
    with ortet.open(store) as hub:
        wait()
        return [hub.sweep(min_garbage=0.0, expire_ns=0).removed for _ in range(int(count))]


def restore(store: str, directory: str, *oids: str) -> Any:
    """Go to commits one after the other; says how often another process was in the way."""
    lost = 0
    with ortet.open(store) as hub, hub.workspace(directory, engine="folder") as ws:
        wait()
        for oid in oids * 10:
            try:
                ws.restore(oid)
            except ortet.Conflict as error:
                if error.kind not in ("head_moved", "changed_meanwhile"):
                    raise
                lost += 1
    return lost


def look(store: str, directory: str, count: str) -> Any:
    """Open, look, close: what a command line does."""
    wait()
    seen = set()
    for _ in range(int(count)):
        with ortet.open(store) as hub, hub.workspace(directory, engine="folder") as ws:
            seen.add(ws.status().clean)
    return sorted(seen)


def hold(store: str, directory: str) -> Any:
    """Be in the middle of moving files until told to go on."""
    with (
        ortet.open(store) as hub,
        hub.workspace(directory, engine="folder") as ws,
        ws.files.exclusive_access(),
    ):
        wait()
        return time.monotonic_ns()


def split(store: str, directory: str) -> Any:
    """Go on with one hub on both sides of fork(2)."""
    with ortet.open(store) as hub:
        ws = hub.workspace(directory, engine="folder")
        ws.commit("before")
        wait()
        child = os.fork()
        if child == 0:
            try:
                Path(directory, "child").write_text("child")
                ws.commit("in the child")
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        Path(directory, "parent").write_text("parent")
        return [os.waitstatus_to_exitcode(status), commit_once(ws)]


def spend(store: str, name: str, count: str) -> Any:
    """Spend one at a time until told to stop; how many were recorded, the refused one included."""
    done = 0
    with ortet.open(store) as hub:
        session = hub.session(name)
        wait()
        for _ in range(int(count)):
            done += 1
            try:
                session.spend(n=1)
            except ortet.Refused as error:
                return [done, error.kind]
    return [done, None]


def deed(store: str, name: str, mark: str) -> Any:
    """Do what must be done once: it leaves a mark."""

    def leave() -> None:
        with Path(mark).open("a") as file:
            file.write("x")

    with ortet.open(store) as hub:
        session = hub.session(name)
        wait()
        try:
            session.act(leave, key="k", replay="once", name="mark")
        except ortet.Conflict as error:
            return error.kind
    return "done"


def main() -> None:
    verb, *args = sys.argv[1:]
    verbs = {
        f.__name__: f
        for f in (create, enter, commit, fork, sweep, restore, look, hold, split, spend, deed)
    }
    say(json.dumps(verbs[verb](*args)))


if __name__ == "__main__":
    main()

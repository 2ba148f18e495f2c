"""Ortet through every row, on both engines, and as a command."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import device
import measure
import ortet
import workspace
from floor import Floor
from measure import Changes, Plan, Sample

OVERLAY, WATCHER, SCAN = "ortet overlay", "ortet folder, watcher", "ortet folder, scan"
FIRST = """
import sys, ortet
with ortet.open(sys.argv[1]) as hub, hub.workspace(sys.argv[2], engine="folder") as ws:
    ws.commit("first")
"""


def all_rows(plan: Plan) -> Iterator[Sample]:
    """Each part starts from a copy and a store of its own, and leaves nothing behind."""
    for part in (_first, _folder, _command, _overlay, _forks, _chain):
        home = plan.place / part.__name__.strip("_")
        home.mkdir()
        print(f"-- ortet: {home.name}", file=sys.stderr)
        try:
            yield from part(plan, home)
        finally:
            shutil.rmtree(home, ignore_errors=True)


def _first(plan: Plan, home: Path) -> Iterator[Sample]:
    """A process of its own each time, its start included, as the peers' are; then restore."""
    if not plan.wants("first", "first-size", "first-rss", "restore"):
        return
    files, store, spent = workspace.copy(plan.scene, home / "files"), home / "store", []
    for _ in range(plan.counts.heavy):
        shutil.rmtree(store, ignore_errors=True)
        measure.settle_disk()
        spent.append(measure.command([sys.executable, "-c", FIRST, str(store), str(files)]))
    yield Sample("first", "ortet", [one.seconds for one in spent])
    yield Sample("first-rss", "ortet", [one.rss_bytes / 1e6 for one in spent])
    yield Sample("first-size", "ortet", [measure.disk_bytes(store) / 1e6])
    if plan.wants("restore"):
        yield Sample("restore", "ortet", _restores(files, store, plan.counts.heavy))


def _restores(files: Path, store: Path, count: int) -> list[float]:
    """With a fresh hub each time: no cache of ours is warm, the page cache is, as for the peers."""
    values, wanted = [], measure.inventory(files)
    for _ in range(count):
        with device.fresh(files.parent) as mount:
            to = mount / "restored"
            measure.settle_disk()
            with ortet.open(store) as hub:
                head = hub.log("files", limit=1)[0]
                begin = measure.now()
                hub.restore(head.oid, to=to)
                values.append(measure.now() - begin)
            if measure.inventory(to) != wanted:
                raise SystemExit("ortet did not restore every file as it was")
    return values


def _folder(plan: Plan, home: Path) -> Iterator[Sample]:
    """In place: found by the watcher, and by a scan."""
    if not plan.wants("inplace"):
        return
    files, changes = workspace.copy(plan.scene, home / "files"), Changes(plan.scene)
    for system, watch in ((WATCHER, True), (SCAN, False)):
        store = home / f"store-{watch}"
        with ortet.open(store):
            (store / "config.toml").write_text(f"watch = {str(watch).lower()}\n")
        with ortet.open(store) as hub, hub.workspace(files, engine="folder") as ws:
            ws.commit("first")
            count = plan.counts.fast if watch else plan.counts.slow * 2
            yield Sample("inplace", system, _after_each(ws, changes.one, count))


def _command(plan: Plan, home: Path) -> Iterator[Sample]:
    if not plan.wants("command", "command-agent"):
        return
    files, changes = workspace.copy(plan.scene, home / "files"), Changes(plan.scene)
    program = str(Path(sys.executable).with_name("ortet"))
    env = {"ORTET_URL": str(home / "store"), "ORTET_AGENT": "off"}

    def ortet_(*words: str) -> float:
        return measure.command([program, "-C", str(files), *words], env=env).seconds * 1000

    def commits() -> Iterator[float]:
        for number in range(plan.counts.slow * 2):
            measure.command(["sh", "-c", changes.one(number)], cwd=files)
            yield ortet_("commit", "-q", "-m", "step")

    ortet_("init")
    ortet_("commit", "-q", "-m", "first")
    measure.settle_disk()
    values = list(commits())
    yield Sample("command", "ortet commit", values)
    env["ORTET_AGENT"] = "on"
    ortet_("agent", "start")
    try:
        ortet_("commit", "-q")  # by which it begins to watch
        yield Sample("command-agent", "ortet commit", list(commits()))
    finally:
        ortet_("agent", "stop")
    version = [measure.command([program, "--version"]).seconds * 1000 for _ in values]
    yield Sample("version", "ortet --version", version)


def _overlay(plan: Plan, home: Path) -> Iterator[Sample]:
    if not plan.wants("noop", "commit-1", "commit-40", "page"):
        return
    files, store, changes = (
        workspace.copy(plan.scene, home / "files"),
        home / "store",
        Changes(plan.scene),
    )
    with ortet.open(store) as hub, hub.workspace(files, engine="overlay") as ws:
        ws.commit("first")
        ws.run(changes.warm())
        ws.commit("100 files in the upper")
        rows: dict[str, Callable[[int], str]] = {
            "noop": lambda _: "true",
            "commit-1": changes.one,
            "commit-40": changes.forty,
            "page": changes.page,
        }
        for row, change in rows.items():
            if plan.wants(row):
                yield from _row(ws, store, row, change, plan.counts.fast)


def _row(
    ws: ortet.Workspace, store: Path, row: str, change: Callable[[int], str], count: int
) -> Iterator[Sample]:
    if row == "page":
        ws.run(change(count))  # the first write copies the whole file up; that is the kernel's time
        ws.commit("copied up")
        count = max(5, count // 4)
    before = measure.disk_bytes(store / "bucket", store / "local" / "tails")
    if row == "commit-1":
        floor, least = Floor(store.parent), []
        yield Sample(
            row, OVERLAY, _after_each(ws, change, count, lambda: least.append(floor.once()))
        )
        yield Sample(row, "the two syncs alone", least, "in turn with the commits")
        floor.close()
        return
    yield Sample(row, OVERLAY, _after_each(ws, change, count))
    if row == "page":
        after = measure.disk_bytes(store / "bucket", store / "local" / "tails")
        yield Sample("page-growth", OVERLAY, [(after - before) / count / 1e3])


def _after_each(
    ws: ortet.Workspace,
    change: Callable[[int], str],
    count: int,
    between: Callable[[], object] = lambda: None,
) -> list[float]:
    measure.settle_disk()  # what set-up left to be written, as before each turn of a peer

    def make(number: int) -> None:
        between()
        result = ws.run(change(number))
        if result.exit_code:
            raise SystemExit(f"a change failed in the workspace: {result.stderr}")

    return measure.repeated(count, make, lambda: ws.commit("step"))


def _forks(plan: Plan, home: Path) -> Iterator[Sample]:
    """Until a command answers; then 100 at once."""
    if not plan.wants("fork", "fork-100"):
        return
    files, store = workspace.copy(plan.scene, home / "files"), home / "store"
    with ortet.open(store) as hub:
        begin = measure.now()
        ws = hub.workspace(files, engine="overlay")
        _answered([ws])
        yield Sample("open", OVERLAY, [measure.now() - begin])
        measure.settle_disk()
        values = []
        for _ in range(plan.counts.forks):
            begin = measure.now()
            _answered(ws.fork(1))
            values.append((measure.now() - begin) * 1000)
        yield Sample("fork", OVERLAY, values)
        before, begin = measure.disk_bytes(store), measure.now()
        many = ws.fork(100)
        made = measure.now() - begin
        _answered(many)
        answered = measure.now() - begin
        yield Sample("fork-100", OVERLAY, [answered], f"made after {made:.2f} s")
        os.sync()
        yield Sample("fork-100-disk", OVERLAY, [(measure.disk_bytes(store) - before) / 1e6])


def _answered(forks: list[ortet.Workspace]) -> None:
    for fork in forks:
        if fork.run(["echo", "here"]).stdout != "here\n":
            raise SystemExit(f"fork {fork.name} did not answer")


def _chain(plan: Plan, home: Path) -> Iterator[Sample]:
    """Many commits in a row: the first and the last tenth must cost the same."""
    if not plan.wants("chain"):
        return
    files, store, changes = (
        workspace.copy(plan.scene, home / "files"),
        home / "store",
        Changes(plan.scene),
    )
    with ortet.open(store) as hub, hub.workspace(files, engine="overlay") as ws:
        ws.commit("first")
        ws.run(changes.warm())
        ws.commit("100 files in the upper")
        before, tenth = measure.disk_bytes(store), plan.counts.chain // 10
        values = _after_each(ws, changes.one, plan.counts.chain)
        growth = (measure.disk_bytes(store) - before) / plan.counts.chain / 1e3
    yield Sample("chain", f"ortet, first {tenth}", values[:tenth])
    yield Sample("chain", f"ortet, last {tenth}", values[-tenth:])
    yield Sample("chain-growth", OVERLAY, [growth])

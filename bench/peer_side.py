"""One peer through every row that applies to it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import device
import measure
import peers
from measure import Changes, Counts, Plan, Sample

ROWS = ("first", "noop", "commit-1", "commit-40", "page", "restore", "fork")


def all_peers(plan: Plan) -> Iterator[Sample]:
    """Every peer after the other; one that this host cannot run is named and left out."""
    for kind in peers.PLAIN:
        yield from _guarded(kind, None, plan)
    for kind, file_system in peers.ON_A_DEVICE:
        yield from _guarded(kind, file_system, plan)


def _guarded(kind: type[peers.Peer], file_system: str | None, plan: Plan) -> Iterator[Sample]:
    home = plan.place / kind.__name__
    home.mkdir()
    print(f"-- {kind.name}", file=sys.stderr)
    try:
        with ExitStack() as stack:
            if file_system:
                home = stack.enter_context(device.loop_device(home, file_system, device.ROOM))
            yield from measure_peer(kind(plan.scene, home), plan)
    except subprocess.CalledProcessError as error:
        words = b" ".join((error.output or b"").split()[-20:]).decode("utf-8", "replace")
        print(f"   left out: {error}: {words}", file=sys.stderr)
    finally:
        shutil.rmtree(plan.place / kind.__name__, ignore_errors=True)


def measure_peer(peer: peers.Peer, plan: Plan) -> Iterator[Sample]:
    """Rows in an order that spares set-up: the first commit, small ones, restore, fork."""
    counts = plan.counts
    if not plan.wants(*ROWS):
        return
    yield from _first(peer, counts.heavy if plan.wants("first") else 1)
    if "commit" in peer.can:
        yield from _commits(peer, plan)
    if "restore" in peer.can and plan.wants("restore"):
        yield Sample("restore", peer.name, _restores(peer, counts.heavy))
    if "fork" in peer.can and plan.wants("fork"):
        name = "git worktree" if peer.name == "git" else peer.name
        yield Sample("fork", name, _forks(peer, counts))


def _first(peer: peers.Peer, count: int) -> Iterator[Sample]:
    """Each time into an empty store; the last one stays for the rows to come."""
    if "first" not in peer.can:
        peer.start()
        peer.commit()
        peer.pack()
        return
    spent = []
    for number in range(count):
        if number:
            peer.stop()
        peer.start()
        measure.settle_disk()
        spent.append(peer.commit())
    peer.pack()
    yield Sample("first", peer.name, [one.seconds for one in spent])
    yield Sample("first-rss", peer.name, [one.rss_bytes / 1e6 for one in spent])
    size = measure.disk_bytes(peer.store) / 1e6
    yield Sample("first-size", peer.name, [size], "after git gc" if peer.name == "git" else "")


def _commits(peer: peers.Peer, plan: Plan) -> Iterator[Sample]:
    changes, counts = Changes(plan.scene), plan.counts
    rows: dict[str, tuple[Callable[[int], str], int]] = {
        "noop": (lambda _: "true", counts.slow),
        "commit-1": (changes.one, counts.slow),
        "commit-40": (changes.forty, counts.slow),
        "page": (changes.page, max(2, counts.slow // 3)),
    }
    for row, (change, count) in rows.items():
        if not plan.wants(row):
            continue
        before = measure.disk_bytes(peer.store) if peer.store.exists() else None
        values = []
        for number in measure.rounds(count):
            peer.shell(change(number))
            measure.settle_disk()
            values.append(peer.commit().seconds * 1000)
        yield Sample(row, peer.name, values)
        if row == "page" and before is not None:
            growth = (measure.disk_bytes(peer.store) - before) / len(values) / 1e3
            yield Sample("page-growth", peer.name, [growth])


def _restores(peer: peers.Peer, count: int) -> list[float]:
    values = []
    for _ in range(count):
        with device.fresh(peer.place) as mount:
            to = mount / "restored"
            measure.settle_disk()
            values.append(peer.restore(to).seconds)
            if (
                len(measure.inventory(to)) < len(measure.inventory(peer.files)) - 1
            ):  # git's own .git file
                raise SystemExit(f"{peer.name} did not restore every file")
    return values


def _forks(peer: peers.Peer, counts: Counts) -> list[float]:
    values = []
    for number in measure.rounds(counts.slow):
        to = peer.place / f"fork-{number}"
        measure.settle_disk()
        values.append(peer.fork(to).seconds * 1000)
        peer.forget(to)
    return values

"""Ortet's live machines beside raw CRIU on the same processes, in turn, and fork(2) inside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ortet
from live_plan import Plan
from live_raw import Raw
from live_rows import FORK, RAW
from measure import Sample, disk_bytes, milliseconds, now, rounds, settle_disk
from ortet.machines.jobs import Job
from ortet.machines.live.machine import LiveMachine

MB = 1_000_000
PATIENCE = 600.0  # seconds: gigabytes of random bytes take long
PROGRAM = Path(__file__).with_name("live_program.py")


def all_rows(plan: Plan) -> Iterator[Sample]:
    for wanted, measured in (
        (("live-fork", "live-commit"), _small),
        (("live-tcp",), _connected),
        (("live-frozen",), _frozen),
        (("live-commit-512", "live-again-512", "live-idle-512", "live-fork-512"), _large),
        (("live-huge", "live-huge-rss"), _huge),
    ):
        if plan.wants(*wanted):
            settle_disk()
            yield from measured(plan)


class Scene:
    """A hub of its own with one session, and raw CRIU on the same machine."""

    def __init__(self, plan: Plan, name: str) -> None:
        home = plan.place / name
        work = home / "work"
        work.mkdir(parents=True)
        (work / "file").write_text("state\n")
        self.store = home / "store"
        self.hub = ortet.open(self.store)
        self.session = self.hub.session(name, workspace=work, engine="criu", files="private")
        self._raw_place = home / "raw"
        self._raw: Raw | None = None

    def start(self, name: str, kind: str) -> Job:
        job = self.session.spawn(name, ["python3", str(PROGRAM), kind], stdin=True)
        if kind == "server":
            _line(job, 0)
        else:
            ask(job, "ready")
        return job

    @property
    def raw(self) -> Raw:
        """Ready for one more."""
        if self._raw is None:
            machine = self.session.machine.files.machine
            assert isinstance(machine, LiveMachine)
            self._raw = Raw(machine, self._raw_place)
        else:
            self._raw.prepare()
        return self._raw

    def fork(self, job: str) -> float:
        """Until the copy of a job answers; the copy is gone afterwards."""
        begin = now()
        (copy,) = self.session.fork(1)
        ask(copy.programs.job(job), "hello")
        spent = (now() - begin) * 1000
        copy.close()
        return spent

    def fork_raw(self, job: str) -> float:
        raw = self.raw
        begin = now()
        raw.dump()
        ask(raw.restore().job(job), "hello")
        spent = (now() - begin) * 1000
        raw.close()
        return spent

    def commit(self) -> float:
        return milliseconds(lambda: self.session.commit("live"))

    def commit_raw(self) -> float:
        raw = self.raw

        def deed() -> None:
            raw.dump()
            raw.store()

        spent = milliseconds(deed)
        raw.close()
        return spent

    def stored(self) -> int:
        """Bytes on the disk that the store's objects take."""
        return disk_bytes(self.store / "bucket", self.store / "local" / "tails")

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()
        self.hub.close()


def _small(plan: Plan) -> Iterator[Sample]:
    scene = Scene(plan, "small")
    scene.session.shell("main")
    job = scene.start("python", "idle")
    forks, raws, commits, stores = list[float](), list[float](), list[float](), list[float]()
    bare: list[float] = []
    scene.commit()  # the first of a session does more
    for _ in rounds(plan.counts.small):
        forks.append(scene.fork("python"))
        commits.append(scene.commit())
        if plan.peers:
            raws.append(scene.fork_raw("python"))
            stores.append(scene.commit_raw())
            bare.append(float(ask(job, "fork")))
    scene.close()
    yield from _samples("live-fork", forks, raws, bare)
    yield from _samples("live-commit", commits, stores)


def _connected(plan: Plan) -> Iterator[Sample]:
    scene = Scene(plan, "tcp")
    scene.session.shell("main")
    scene.start("server", "server")
    client = scene.start("client", "client")
    scene.start("python", "idle")
    ours, raws = list[float](), list[float]()
    scene.commit()
    for _ in rounds(plan.counts.small):
        ours.append(scene.fork("client"))
        if plan.peers:
            raws.append(scene.fork_raw("client"))
        ask(client, "still here")
    scene.close()
    yield from _samples("live-tcp", ours, raws)


def _frozen(plan: Plan) -> Iterator[Sample]:
    """The longest time in which a program of the parent did not run, as it saw it itself."""
    scene = Scene(plan, "frozen")
    scene.session.shell("main")
    ticker = scene.start("ticker", "ticker")
    ours, raws = list[float](), list[float]()
    scene.commit()
    for _ in rounds(plan.counts.small):
        ask(ticker, "gap")
        scene.commit()
        ours.append(float(ask(ticker, "gap")))
        if plan.peers:
            scene.commit_raw()
            raws.append(float(ask(ticker, "gap")))
    scene.close()
    yield from _samples("live-frozen", ours, raws)


def _large(plan: Plan) -> Iterator[Sample]:
    size = plan.counts.mib << 20
    commits, stores, again, new = list[float](), list[float](), list[float](), list[float]()
    forks, raws, bare = list[float](), list[float](), list[float]()
    for number in rounds(plan.counts.large):
        scene = Scene(plan, f"large-{number}")
        scene.session.commit("begun")
        job = scene.start("python", str(plan.counts.mib))
        settle_disk()
        commits.append(scene.commit())
        settle_disk()
        before = scene.stored()
        again.append(scene.commit())
        settle_disk()
        new.append(100 * (scene.stored() - before) / size)
        if plan.peers:
            stores.append(scene.commit_raw())
            settle_disk()
        forks.append(scene.fork("python"))
        settle_disk()
        if plan.peers:
            raws.append(scene.fork_raw("python"))
            bare.append(float(ask(job, "fork")))
        scene.close()
    yield from _samples("live-commit-512", commits, stores)
    yield Sample("live-again-512", "ortet", again)
    yield Sample("live-idle-512", "ortet", new, "blocks on the disk")
    yield from _samples("live-fork-512", forks, raws, bare)


def _huge(plan: Plan) -> Iterator[Sample]:
    scene = Scene(plan, "huge")
    job = scene.start("python", str(plan.counts.huge))
    known = ask(job, "sum")
    Path("/proc/self/clear_refs").write_text("5")  # forget the largest size so far
    begin = now()
    commit = scene.session.commit("huge")
    committed = now() - begin
    scene.hub.close()
    with ortet.open(scene.store) as hub:
        session = hub.session("huge")
        begin = now()
        session.restore(commit.oid)
        job = session.programs.job("python")
        ask(job, "hello")
        answered = now() - begin
        if ask(job, "sum") != known:
            raise SystemExit("the memory of the huge machine came back changed")
        read = now() - begin
    note = f"{plan.counts.huge} MiB of random bytes, the same after it"
    yield Sample("live-huge", "ortet, commit", [committed], note)
    yield Sample("live-huge", "ortet, restore", [answered], "by a new hub, out of the store")
    yield Sample("live-huge", "ortet, all of it read", [read], "and its checksum made")
    yield Sample("live-huge-rss", "ortet", [_largest() / MB])


def _samples(
    row: str, ours: list[float], raws: list[float], bare: list[float] | None = None
) -> Iterator[Sample]:
    yield Sample(row, "ortet", ours)
    if raws:
        yield Sample(row, RAW, raws)
    if bare:
        yield Sample(row, FORK, bare, "one process, shares memory, files and sockets: no machine")


def ask(job: Job, line: str) -> str:
    """A line to a program inside; the line it answers."""
    cursor = job.read(0).cursor
    job.write(f"{line}\n".encode())
    return _line(job, cursor)


def _line(job: Job, cursor: int) -> str:
    seen = b""
    while not seen.endswith(b"\n"):
        piece = job.read(cursor, PATIENCE)
        if not piece.data:
            raise SystemExit(f"{job.name} does not answer: {job.logs()[-2000:]!r}")
        seen, cursor = seen + piece.data, piece.cursor
    return seen.decode().strip()


def _largest() -> int:
    """Bytes of memory this process had at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
